import type { SessionAccess } from '../gateway/gateway.ts'
import { createHarnessHome } from '../node/harness-home.ts'
import type { FoundHarness } from '../node/find-harness.ts'
import type { Harness, HarnessSetup } from '../node/harnesses/harness.ts'
import type { PreparedHarness } from './record-session.ts'

export type Environment = Readonly<Record<string, string | undefined>>

/** A command of the user's: all of the environment, with where the model is on top. */
export function prepareCommand(
  command: readonly [string, ...string[]],
  { env, model, access }: { env: Environment; model: string; access: SessionAccess },
): PreparedHarness {
  return { command, env: { ...env, ...harnessEnv(access, model) }, async [Symbol.asyncDispose]() {} }
}

/** Every name by which a provider's SDK or CLI looks for its base URL and key. */
function harnessEnv(access: SessionAccess, model: string): Record<string, string> {
  const { baseUrl, key } = access
  return {
    OPENAI_BASE_URL: `${baseUrl}/v1`,
    OPENAI_API_BASE: `${baseUrl}/v1`,
    OPENAI_API_KEY: key,
    OPENAI_MODEL: model,
    ANTHROPIC_BASE_URL: baseUrl,
    ANTHROPIC_API_KEY: key,
    ANTHROPIC_MODEL: model,
    GOOGLE_GEMINI_BASE_URL: baseUrl,
    GEMINI_API_KEY: key,
    GOOGLE_API_KEY: key,
    GEMINI_MODEL: model,
    POLAR_SESSION_ID: access.id,
    POLAR_BASE_URL: baseUrl,
    POLAR_API_KEY: key,
    POLAR_MODEL: model,
  }
}

export interface PresetOptions {
  harness: Harness
  found: FoundHarness
  prompt: string
  /** After those of the preset. */
  extraArgs: readonly string[]
  setup: Omit<HarnessSetup, 'baseUrl' | 'key'>
  /** Ours, of which the harness sees only what programs in general need, and what `kept` names. */
  env: Environment
  kept: readonly string[]
  tmpdir: string
}

/** A harness we know, in a HOME of its own and an environment in which nothing else configures it. */
export async function preparePreset(options: PresetOptions, access: SessionAccess): Promise<PreparedHarness> {
  const { harness, found, setup } = options
  const launch = harness.configure({ ...setup, baseUrl: access.baseUrl, key: access.key })
  const home = await createHarnessHome(launch.files, options.tmpdir)
  return {
    command: [...found.command, ...launch.args, ...options.extraArgs],
    env: {
      ...pick(options.env, [...GENERAL, ...options.kept]),
      ...QUIET,
      HOME: home.path,
      TMPDIR: home.tmpdir,
      ...launch.env,
    },
    stdin: options.prompt,
    [Symbol.asyncDispose]: () => home[Symbol.asyncDispose](),
  }
}

/** Anything else may configure a harness: another base URL, another key, a proxy, a folder of settings. */
const GENERAL = ['PATH', 'LANG', 'LC_ALL', 'LC_CTYPE', 'TZ', 'TERM', 'USER', 'LOGNAME', 'SHELL']

/** What many programs agree on. */
const QUIET = { DO_NOT_TRACK: '1', NO_UPDATE_NOTIFIER: '1' }

function pick(env: Environment, names: readonly string[]): Record<string, string | undefined> {
  return Object.fromEntries(names.filter((name) => env[name] !== undefined).map((name) => [name, env[name]]))
}
