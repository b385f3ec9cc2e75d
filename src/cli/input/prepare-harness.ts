import type { SessionAccess } from '../../gateway/gateway.ts'
import type { FoundHarness } from '../../node/harness/find-harness.ts'
import { createHarnessHome } from '../../node/harness/harness-home.ts'
import { placeLaunch, planLaunch, type AgentOptions } from '../../node/harness/harness-launch.ts'
import { gatewayVariables, type Harness, type HarnessSetup } from '../../node/harness/presets/harness.ts'
import type { PreparedHarness } from '../../compose/record-session.ts'

export type Environment = Readonly<Record<string, string | undefined>>

/** Prepares a command of the user: the whole environment, plus the variables of the gateway. */
export function prepareCommand(
  command: readonly [string, ...string[]],
  { env, model, access }: { env: Environment; model: string; access: SessionAccess },
): PreparedHarness {
  const ours = gatewayVariables({ sessionId: access.id, baseUrl: access.baseUrl, key: access.key, model })
  return { command, env: { ...env, ...ours }, async [Symbol.asyncDispose]() {} }
}

export interface PresetOptions {
  harness: Harness
  /** Absent for a preset without a program of its own. */
  found?: FoundHarness
  prompt: string
  /** Appended to the arguments of the preset. */
  extraArgs: readonly string[]
  model: Pick<HarnessSetup, 'model' | 'contextTokens' | 'images'>
  agent: AgentOptions
  /** Environment of this process. The harness gets the general variables, and those that `kept` names. */
  env: Environment
  kept: readonly string[]
  workdir: string
  tmpdir: string
}

/** Prepares a preset with a HOME directory of its own, and an environment without other configuration of the harness. */
export async function preparePreset(options: PresetOptions, access: SessionAccess): Promise<PreparedHarness> {
  const { harness, found, model, agent, extraArgs, workdir } = options
  const home = await createHarnessHome(options.tmpdir)
  const dispose = () => home[Symbol.asyncDispose]()
  try {
    const plan = planLaunch(
      harness,
      {
        start: found,
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

/** Other variables may configure a harness: a base URL, a key, a proxy, a folder of settings. */
const GENERAL = ['PATH', 'LANG', 'LC_ALL', 'LC_CTYPE', 'TZ', 'TERM', 'USER', 'LOGNAME', 'SHELL']

function pick(env: Environment, names: readonly string[]): Record<string, string> {
  return Object.fromEntries(names.flatMap((name) => (env[name] === undefined ? [] : [[name, env[name]]])))
}
