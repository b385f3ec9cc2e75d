import * as z from 'zod'
import { RolloutError } from '../../../model/failure.ts'
import type { McpServer, ShellCommand } from '../../../model/task.ts'

/**
 * The session and model of one run of a harness. Every path is a path in the sandbox of the harness; presets do not read
 * the file system.
 */
export interface HarnessSetup {
  sessionId: string
  /** The URL of the session at the gateway, without `/v1`; the path of each API is appended. */
  baseUrl: string
  /** The secret of this session. */
  key: string
  model: string
  /** Limits prompt and answer together. */
  contextTokens: number
  /** Whether the model reads images; a text-only model refuses a conversation that contains one. */
  images: boolean
  /** Absolute; no other program uses it. */
  home: string
  /** Absolute; contains the instruction for harnesses that read it from a file. */
  instructionFile: string
  mcpServers: readonly McpServer[]
  /** Whether the task has skills; they are copied to the `skillsFolder` of the preset. */
  hasSkills: boolean
  /** The task's settings; each preset defines the settings that it accepts. */
  settings: Readonly<Record<string, unknown>>
  /** The command to run; only for the preset `shell`. */
  shell?: ShellCommand
}

/** Files, environment and arguments of a harness that starts in an empty HOME. */
export interface HarnessLaunch {
  /** Text by path below HOME. Some contain the key, so only their owner may read them. */
  files: Readonly<Record<string, string>>
  /** Added to a clean environment with PATH and HOME. */
  env: Readonly<Record<string, string>>
  /** Every user of the machine can read these: they must contain neither the key nor the prompt. */
  args: readonly string[]
}

/** The program in a folder with the installed package. */
export interface HarnessProgram {
  /** Relative to that folder; the first path that exists is used. */
  paths: readonly [string, ...string[]]
  /** `node`: a script for Node; `python`: a Python with the package; `native`: an executable. */
  kind: 'node' | 'python' | 'native'
}

/**
 * The meaning of a harness's exit code. `gave-up` may have any cause, also a failed engine; the recorded calls show which.
 */
export type HarnessEnd = 'finished' | 'gave-up' | 'bad-setup' | 'limit-reached' | 'interrupted'

/**
 * Runs one agent CLI once, without a user, against the gateway only. Presets are pure: they return files and arguments and
 * do not access the disk.
 */
export interface Harness {
  /** The name on the command line and in tasks. */
  name: string
  /** The product name, for messages. */
  title: string
  /** The package to install; absent for programs that every sandbox has. */
  package?: HarnessPackage
  /** The command of an installation that `polar harness install` did not make. */
  command: string
  hasSubAgents: boolean
  /** How the harness reads the instruction. With `file` its standard input is empty. */
  instruction: 'stdin' | 'file'
  /** MCP transports that the harness supports. */
  mcpTransports: readonly McpServer['transport'][]
  /** The prefix of the names of a server's tools in model calls. Absent: the names have no prefix. */
  mcpToolPrefix?: (server: string) => string
  /** The folder below HOME with skills. Absent: the harness has no skills, and a task with skills is rejected. */
  skillsFolder?: string
  /** Folders below HOME with logs of the harness that are kept. */
  logFolders?: readonly string[]
  /** The schema of `settings`; unknown keys are rejected. */
  settings: z.ZodObject
  /** Pure. Throws `config.invalid` for settings or MCP servers that the harness does not support. */
  configure(setup: HarnessSetup): HarnessLaunch
  /** Returns the version that the settings require; undefined: any version. */
  versionOf?: (settings: Readonly<Record<string, unknown>>) => string | undefined
  /** Exit codes with a special meaning. Any other code except 0 is `gave-up`. */
  exitCodes: Readonly<Record<number, HarnessEnd>>
}

export interface HarnessPackage {
  registry: 'npm' | 'pypi'
  name: string
  /** Exact. */
  version: string
  /** Dependencies whose latest version does not work, as `name==1.2.3`. */
  pins?: readonly string[]
  /** The minimum Python version, such as `3.12`. Absent: any Python 3. */
  minimumPython?: string
  /** Python modules that a session imports, and variables for importing them; absent: any file may be imported. */
  imports?: { modules: readonly string[]; env: Readonly<Record<string, string>> }
}

/** A harness that `polar harness install` installs. */
export interface PackagedHarness extends Harness {
  package: HarnessPackage
  /** `platform` is Node's name, such as `linux-x64`. Install scripts do not run, so the program must not depend on one. */
  program(platform: string): HarnessProgram
  /** The minimum Node version. Absent: the harness does not use Node. */
  minimumNode?: string
  /** The wire API that the preset configures: the id of a dialect of the gateway. */
  dialect: string
}

/** A preset as its author writes it: `configure` gets validated settings. */
export type HarnessDefinition<H extends Harness, Shape extends z.ZodRawShape> = Omit<H, 'settings' | 'configure'> & {
  settings: z.ZodObject<Shape>
  configure(setup: HarnessSetup, settings: z.output<z.ZodObject<Shape>>): HarnessLaunch
}

export function defineHarness<Shape extends z.ZodRawShape, H extends Harness = PackagedHarness>(
  definition: HarnessDefinition<H, Shape>,
): H {
  const configure = (setup: HarnessSetup): HarnessLaunch => {
    const settings = definition.settings.safeParse(setup.settings)
    if (!settings.success) {
      const problems = settings.error.issues.map(describeIssue).join('; ')
      throw new RolloutError('config.invalid', `Settings of ${definition.name}: ${problems}.`)
    }
    assertServers(definition, setup.mcpServers)
    return definition.configure(setup, settings.data)
  }
  return { ...definition, configure } as unknown as H
}

function describeIssue(issue: z.core.$ZodIssue): string {
  const path = issue.path.join('.')
  if (issue.code === 'unrecognized_keys') {
    const keys = issue.keys.map((key) => (path === '' ? key : `${path}.${key}`)).join(', ')
    return `there is no ${keys}`
  }
  return path === '' ? issue.message : `${path}: ${issue.message}`
}

/** Server names become keys of config files and parts of tool names; every CLI accepts names of this form. */
const SERVER_NAME = /^[A-Za-z][A-Za-z0-9_-]{0,39}$/

function assertServers(
  { name, mcpTransports }: Pick<Harness, 'name' | 'mcpTransports'>,
  servers: readonly McpServer[],
): void {
  const problems = servers.flatMap((server, i) => {
    const label = `MCP server "${server.name}"`
    if (!SERVER_NAME.test(server.name)) return `${label}: a name has letters, digits, - and _, and starts with a letter`
    if (servers.findIndex((other) => other.name === server.name) < i) return `${label} is listed twice`
    if (mcpTransports.includes(server.transport)) return []
    const supported = mcpTransports.length === 0 ? 'no transport' : mcpTransports.join(' and ')
    return `${label}: ${name} supports ${supported}, not ${server.transport}`
  })
  if (problems.length > 0) throw new RolloutError('config.invalid', `${problems.join('; ')}.`)
}

/** The name of the gateway in config files of harnesses. */
export const PROVIDER = 'polar'

/** The variable with the key, for harnesses whose config file names the variable. */
export const KEY_VARIABLE = 'POLAR_API_KEY'

/** The maximum answer length. Harnesses compact at context minus answer length, so it must not fill a small context. */
export function answerTokens(contextTokens: number): number {
  return Math.min(32_000, Math.floor(contextTokens / 4))
}

export function endOf(harness: Pick<Harness, 'exitCodes'>, exitCode: number): HarnessEnd {
  if (exitCode === 0) return 'finished'
  // Shells report a program that signal n ended as 128 + n.
  return harness.exitCodes[exitCode] ?? (exitCode > 128 ? 'interrupted' : 'gave-up')
}

/** The variables from which the SDKs and CLIs of all providers read their base URL, key and model. */
export function gatewayVariables(
  access: Pick<HarnessSetup, 'sessionId' | 'baseUrl' | 'key' | 'model'>,
): Record<string, string> {
  const { sessionId, baseUrl, key, model } = access
  return {
    OPENAI_BASE_URL: `${baseUrl}/v1`,
    OPENAI_API_BASE: `${baseUrl}/v1`,
    OPENAI_API_KEY: key,
    OPENAI_MODEL: model,
    ANTHROPIC_BASE_URL: baseUrl,
    ANTHROPIC_API_KEY: key,
    ANTHROPIC_MODEL: model,
    GOOGLE_GEMINI_BASE_URL: baseUrl,
    GOOGLE_API_URL: baseUrl,
    GEMINI_API_KEY: key,
    GOOGLE_API_KEY: key,
    GEMINI_MODEL: model,
    POLAR_SESSION_ID: sessionId,
    POLAR_BASE_URL: baseUrl,
    POLAR_API_KEY: key,
    POLAR_MODEL: model,
  }
}

export function toJsonFile(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`
}

/** Exit codes of Gemini CLI and its forks. */
export const GEMINI_EXIT_CODES = {
  1: 'gave-up',
  41: 'bad-setup',
  42: 'bad-setup',
  44: 'bad-setup',
  52: 'bad-setup',
  53: 'limit-reached',
  55: 'bad-setup',
  130: 'interrupted',
} as const

/** An MCP server in settings of Gemini CLI and its forks. The key of the address selects the transport. `trust`: no confirmation. */
export function toGeminiServer({ transport, command, args, url }: McpServer): Record<string, unknown> {
  switch (transport) {
    case 'stdio':
      return { command, args, trust: true }
    case 'sse':
      return { url, trust: true }
    case 'streamable-http':
      return { httpUrl: url, trust: true }
  }
}

/** Repeats a flag for each value: `--flag a --flag b`. */
export function repeated(flag: string, values: readonly string[] | undefined): string[] {
  return (values ?? []).flatMap((value) => [flag, value])
}

/** A flag with its value; empty if the value is undefined. */
export function optional(flag: string, value: string | number | undefined): string[] {
  return value === undefined ? [] : [flag, String(value)]
}

/** Additional keys for a CLI's config file, except those that lead it to the gateway. */
export function extraConfig(reserved: readonly string[]): z.ZodOptional<z.ZodType<Record<string, unknown>>> {
  return z
    .record(z.string(), z.json())
    .superRefine((config, context) => {
      for (const key of Object.keys(config)) {
        if (key === '__proto__') context.addIssue({ code: 'custom', path: [key], message: 'is not a valid key' })
        if (!reserved.includes(key)) continue
        context.addIssue({ code: 'custom', path: [key], message: 'is set by polar, so that calls reach the gateway' })
      }
    })
    .optional()
}

export const words = z.array(z.string().min(1)).optional()

/** Names as a list, or as the text of the CLI's own flag. */
export const wordsOrText = z.union([z.array(z.string().min(1)), z.string().min(1)]).optional()

/** The argument for `wordsOrText`: a list is joined by commas. */
export function toList(value: z.output<typeof wordsOrText>): string | undefined {
  return Array.isArray(value) ? value.join(',') : value
}
