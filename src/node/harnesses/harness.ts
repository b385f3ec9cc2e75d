/** Where the model of one session is, and what a harness must be told about it. */
export interface HarnessSetup {
  /** Of the session, without `/v1` or the like; each API's path follows it. */
  baseUrl: string
  /** Secret of this one session. */
  key: string
  model: string
  /** Prompt and answer together. */
  contextTokens: number
  /** Whether the model reads images; a text-only one refuses a conversation that holds one. */
  images: boolean
}

/** All it takes to start a harness in an empty HOME of its own. */
export interface HarnessLaunch {
  /** Text by path below HOME. Some hold the key, so they are written for their owner only. */
  files: Readonly<Record<string, string>>
  /** On top of a clean environment with PATH and HOME. */
  env: Readonly<Record<string, string>>
  /** Everyone on the machine can read these: neither the key nor the prompt is among them. */
  args: readonly string[]
}

/** The program in a folder that npm installed the package into. */
export interface HarnessProgram {
  /** Relative to that folder; the first that exists counts. */
  paths: readonly [string, ...string[]]
  /** `node`: a script for Node; `native`: runs by itself. */
  kind: 'node' | 'native'
}

/**
 * How a harness ended, as far as its exit code tells. `gave-up` may have any reason, also an engine that failed: the
 * recorded calls say which.
 */
export type HarnessEnd = 'finished' | 'gave-up' | 'bad-setup' | 'limit-reached' | 'interrupted'

/**
 * One agent CLI: where it comes from, and how to run it once without a person, against our gateway and nothing else. The
 * prompt is its standard input. Plain data in, plain data out: what touches the disk is outside.
 */
export interface Harness {
  /** On the command line and in tasks. */
  name: string
  /** What people call it. */
  title: string
  npm: { package: string; version: string }
  /** Its command where it was installed by other means. */
  command: string
  /** As Node names platforms: `linux-x64`, `darwin-arm64`. Install scripts do not run, so wrappers that need one are no use. */
  program(platform: string): HarnessProgram
  /** Oldest Node that runs it; absent for a native program. */
  minimumNode?: string
  /** The wire API it is set up to speak: the id of a dialect of the gateway. */
  dialect: string
  hasSubAgents: boolean
  configure(setup: HarnessSetup): HarnessLaunch
  /** Exit codes that mean something particular. Any other but 0 is `gave-up`. */
  exitCodes: Readonly<Record<number, HarnessEnd>>
}

/** The name under which configurations know the gateway. */
export const PROVIDER = 'polar'

/** Where presets put the key for harnesses that read it from a variable of one's choice. */
export const KEY_VARIABLE = 'POLAR_API_KEY'

/** How long an answer may be. Harnesses compact when context less answer is used up, so a small context needs room. */
export function answerTokens(contextTokens: number): number {
  return Math.min(32_000, Math.floor(contextTokens / 4))
}

export function endOf(harness: Pick<Harness, 'exitCodes'>, exitCode: number): HarnessEnd {
  if (exitCode === 0) return 'finished'
  // Shells report a program that signal n ended as 128 + n.
  return harness.exitCodes[exitCode] ?? (exitCode > 128 ? 'interrupted' : 'gave-up')
}

export function toJsonFile(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`
}
