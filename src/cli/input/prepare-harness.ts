import type { SessionAccess } from '../../gateway/gateway.ts'
import type { FoundHarness } from '../../node/harness/find-harness.ts'
import { createHarnessHome } from '../../node/harness/harness-home.ts'
import { placeLaunch, planLaunch, type AgentOptions } from '../../node/harness/harness-launch.ts'
import { gatewayVariables, type Harness, type HarnessSetup } from '../../node/harness/presets/harness.ts'
import type { PreparedHarness } from '../../compose/record-session.ts'

export type Environment = Readonly<Record<string, string | undefined>>

/** A command of the user's: all of the environment, with where the model is on top. */
export function prepareCommand(
  command: readonly [string, ...string[]],
  { env, model, access }: { env: Environment; model: string; access: SessionAccess },
): PreparedHarness {
  const ours = gatewayVariables({ sessionId: access.id, baseUrl: access.baseUrl, key: access.key, model })
  return { command, env: { ...env, ...ours }, async [Symbol.asyncDispose]() {} }
}

export interface PresetOptions {
  harness: Harness
  /** Absent: a preset that needs no program of its own. */
  found?: FoundHarness
  prompt: string
  /** After those of the preset. */
  extraArgs: readonly string[]
  model: Pick<HarnessSetup, 'model' | 'contextTokens' | 'images'>
  agent: AgentOptions
  /** Ours, of which the harness sees only what programs in general need, and what `kept` names. */
  env: Environment
  kept: readonly string[]
  /** Where it works. */
  workdir: string
  tmpdir: string
}

/** A harness we know, in a HOME of its own and an environment in which nothing else configures it. */
export async function preparePreset(options: PresetOptions, access: SessionAccess): Promise<PreparedHarness> {
  const { harness, found, model, agent, extraArgs, workdir } = options
  const home = await createHarnessHome(options.tmpdir)
  const dispose = () => home[Symbol.asyncDispose]()
  try {
    const plan = planLaunch(
      harness,
      {
        ...(found === undefined ? {} : { start: found }),
        home: home.path,
        workdir,
        env: pick(options.env, [...GENERAL, ...options.kept]),
      },
      {
        sessionId: access.id,
        baseUrl: access.baseUrl,
        key: access.key,
        ...model,
        instruction: options.prompt,
        agent,
        extraArgs,
      },
    )
    await placeLaunch(plan)
    return { command: plan.command, cwd: plan.cwd, env: plan.env, stdin: plan.stdin, [Symbol.asyncDispose]: dispose }
  } catch (error) {
    await dispose()
    throw error
  }
}

/** Anything else may configure a harness: another base URL, another key, a proxy, a folder of settings. */
const GENERAL = ['PATH', 'LANG', 'LC_ALL', 'LC_CTYPE', 'TZ', 'TERM', 'USER', 'LOGNAME', 'SHELL']

function pick(env: Environment, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(names.flatMap((name) => (env[name] === undefined ? [] : [[name, env[name]]])))
}
