import * as z from 'zod'
import { RolloutError } from '../../../model/failure.ts'
import type { McpServer, ShellCommand } from '../../../model/task.ts'

/**
 * Where the model of one session is, and what a harness must be told about it. Every path is as the harness will see it,
 * in whatever sandbox that may be; none is looked at here.
 */
export interface HarnessSetup {
  sessionId: string
  /** Of the session, without `/v1` or the like; each API's path follows it. */
  baseUrl: string
  /** Secret of this one session. */
  key: string
  model: string
  /** Prompt and answer together. */
  contextTokens: number
  /** Whether the model reads images; a text-only one refuses a conversation that holds one. */
  images: boolean
  /** Absolute, and the harness's alone. */
  home: string
  /** Absolute; where the instruction lies for those that read it from a file. */
  instructionFile: string
  mcpServers: readonly McpServer[]
  /** Whether the task brings skills; they are put where the preset says. */
  hasSkills: boolean
  /** As the task has them; each preset says which it knows. */
  settings: Readonly<Record<string, unknown>>
  /** What to run; only for a preset that runs what the task says. */
  shell?: ShellCommand
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

/** The program in a folder that the package was installed into. */
export interface HarnessProgram {
  /** Relative to that folder; the first that exists counts. */
  paths: readonly [string, ...string[]]
  /** `node`: a script for Node; `python`: a Python that knows the package; `native`: runs by itself. */
  kind: 'node' | 'python' | 'native'
}

/**
 * How a harness ended, as far as its exit code tells. `gave-up` may have any reason, also an engine that failed: the
 * recorded calls say which.
 */
export type HarnessEnd = 'finished' | 'gave-up' | 'bad-setup' | 'limit-reached' | 'interrupted'

/**
 * How to run one agent CLI once without a person, against our gateway and nothing else. Plain data in, plain data out: what
 * touches the disk is outside.
 */
export interface Harness {
  /** On the command line and in tasks. */
  name: string
  /** What people call it. */
  title: string
  /** Where it comes from; absent for what every sandbox has. */
  package?: HarnessPackage
  /** Its command where it was installed by other means. */
  command: string
  hasSubAgents: boolean
  /** How it is told what to do: on its standard input, or in a file, and then its input is empty. */
  instruction: 'stdin' | 'file'
  /** Ways it can talk to MCP servers. */
  mcpTransports: readonly McpServer['transport'][]
  /** How the names of a server's tools begin in its calls; absent: they cannot be told from others. */
  mcpToolPrefix?: (server: string) => string
  /** The folder below HOME where it looks for skills; absent: it has none, and a task that brings some is refused. */
  skillsFolder?: string
  /** Folders below HOME in which it writes about its own run; absent: it writes nothing that is worth keeping. */
  logFolders?: readonly string[]
  /** What `settings` may hold; an unknown key is refused by name. */
  settings: z.ZodObject
  /** Throws RolloutError `config.invalid` for settings or servers it cannot use. The same setup gives the same launch. */
  configure(setup: HarnessSetup): HarnessLaunch
  /** The version that these settings ask for; absent or undefined: any. */
  versionOf?: (settings: Readonly<Record<string, unknown>>) => string | undefined
  /** Exit codes that mean something particular. Any other but 0 is `gave-up`. */
  exitCodes: Readonly<Record<number, HarnessEnd>>
}

export interface HarnessPackage {
  registry: 'npm' | 'pypi'
  name: string
  /** Exact. */
  version: string
  /** Packages it needs in an exact version, as `name==1.2.3`, because it does not work with the newest. */
  pins?: readonly string[]
  /** Oldest Python it runs on, as `3.12`; absent: any that machines have. */
  minimumPython?: string
  /** Python modules that a session imports, and variables for importing them; absent: any file may be imported. */
  imports?: { modules: readonly string[]; env: Readonly<Record<string, string>> }
}

/** One that we install. */
export interface PackagedHarness extends Harness {
  package: HarnessPackage
  /** As Node names platforms: `linux-x64`, `darwin-arm64`. Install scripts do not run, so wrappers that need one are no use. */
  program(platform: string): HarnessProgram
  /** Oldest Node that runs it; absent where it needs none. */
  minimumNode?: string
  /** The wire API it is set up to speak: the id of a dialect of the gateway. */
  dialect: string
}

/** A preset as it is written: its `configure` is given settings that are checked already. */
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

/** Names become keys of files, parts of tool names and more; every CLI takes these. */
const SERVER_NAME = /^[A-Za-z][A-Za-z0-9_-]{0,39}$/

function assertServers(
  { name, mcpTransports }: Pick<Harness, 'name' | 'mcpTransports'>,
  servers: readonly McpServer[],
): void {
  const problems = servers.flatMap((server, i) => {
    const label = `MCP server "${server.name}"`
    if (!SERVER_NAME.test(server.name)) return `${label}: a name has letters, digits, - and _, and starts with a letter`
    if (servers.findIndex((other) => other.name === server.name) < i) return `${label} is there twice`
    if (mcpTransports.includes(server.transport)) return []
    const able = mcpTransports.length === 0 ? 'none' : mcpTransports.join(' and ')
    return `${label}: ${name} knows ${able}, not ${server.transport}`
  })
  if (problems.length > 0) throw new RolloutError('config.invalid', `${problems.join('; ')}.`)
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

/** Every name by which a provider's SDK or CLI looks for its base URL and key. */
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

/** Flags that repeat, or none: `--flag a --flag b`. */
export function repeated(flag: string, values: readonly string[] | undefined): string[] {
  return (values ?? []).flatMap((value) => [flag, value])
}

/** One flag with its value, or none. */
export function optional(flag: string, value: string | number | undefined): string[] {
  return value === undefined ? [] : [flag, String(value)]
}

/** Further keys for a CLI's own configuration file, but for those that lead it to the gateway. */
export function extraConfig(reserved: readonly string[]): z.ZodOptional<z.ZodType<Record<string, unknown>>> {
  return z
    .record(z.string(), z.json())
    .superRefine((config, context) => {
      for (const key of Object.keys(config)) {
        if (key === '__proto__') context.addIssue({ code: 'custom', path: [key], message: 'is no name for a key' })
        if (!reserved.includes(key)) continue
        context.addIssue({ code: 'custom', path: [key], message: 'is set by polar, so that calls reach the gateway' })
      }
    })
    .optional()
}

export const words = z.array(z.string().min(1)).optional()

/** Names as a list, or as the text that the CLI itself takes. */
export const wordsOrText = z.union([z.array(z.string().min(1)), z.string().min(1)]).optional()

/** One argument of `wordsOrText`: a list is joined by commas. */
export function toList(value: z.output<typeof wordsOrText>): string | undefined {
  return Array.isArray(value) ? value.join(',') : value
}
