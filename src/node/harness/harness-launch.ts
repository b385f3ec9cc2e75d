import { cp, mkdir, writeFile } from 'node:fs/promises'
import { dirname, posix } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import type { AgentSpec } from '../../model/task.ts'
import type { ProgramStart } from './install/harness-bundle.ts'
import type { Harness, HarnessSetup } from './presets/harness.ts'

/** The fields of a task's agent besides its name. */
export type AgentOptions = Pick<AgentSpec, 'settings' | 'env' | 'mcp_servers' | 'skills_path' | 'custom_shell'>

export const NO_OPTIONS: AgentOptions = { settings: {}, env: {}, mcp_servers: [] }

/** Paths and environment in the sandbox of the harness. */
export interface LaunchEnvironment {
  /** The command of the program, as `bundleStart` returns it for the mounted bundle. Absent: the program's name. */
  start?: ProgramStart
  /** Empty; no other program uses it. */
  home: string
  workdir: string
  /** General variables, such as PATH; none that configures a harness. */
  env: Readonly<Record<string, string>>
}

/** The instruction and the model of a launch. */
export interface LaunchRequest extends Pick<
  HarnessSetup,
  'sessionId' | 'baseUrl' | 'key' | 'model' | 'contextTokens' | 'images'
> {
  instruction: string
  agent: AgentOptions
  /** Appended to the arguments of the preset. */
  extraArgs?: readonly string[]
}

/**
 * One run of a harness in any sandbox: create the folders, write the files, copy the trees, start the command. All paths
 * are absolute paths in the sandbox, except the source of a copy.
 */
export interface LaunchPlan {
  /** Created with mode 0700, and so are missing parents. */
  folders: readonly string[]
  /** Written with mode 0600: some contain the key. */
  files: Readonly<Record<string, string>>
  /** Trees from paths of this machine that the task names. */
  copies: readonly { source: string; target: string }[]
  command: readonly [string, ...string[]]
  cwd: string
  /** The complete environment. */
  env: Readonly<Record<string, string>>
  stdin: string
}

/** Plans a run of a harness. Pure. Throws `config.invalid` for options that the preset does not support. */
export function planLaunch(harness: Harness, environment: LaunchEnvironment, request: LaunchRequest): LaunchPlan {
  const { home } = environment
  const { instruction, agent, extraArgs = [], ...model } = request
  const instructionFile = posix.join(home, INSTRUCTION)
  const shell = agent.custom_shell ?? undefined
  const launch = harness.configure({
    ...model,
    home,
    instructionFile,
    mcpServers: agent.mcp_servers,
    hasSkills: agent.skills_path != null,
    settings: agent.settings,
    shell,
  })
  assertOwnVariables(harness, agent.env, launch.env, model)
  const isByFile = harness.instruction === 'file'
  const files = { ...launch.files, ...(isByFile ? { [INSTRUCTION]: instruction } : {}) }
  const start = environment.start ?? { command: [harness.command], env: {} }
  const tmpdir = posix.join(home, 'tmp')
  return {
    folders: [tmpdir],
    files: Object.fromEntries(Object.entries(files).map(([path, text]) => [posix.join(home, path), text])),
    copies: copiesOf(harness, agent.skills_path ?? undefined, home),
    command: [...(start.command as [string, ...string[]]), ...launch.args, ...extraArgs],
    cwd: posix.resolve(environment.workdir, shell?.cwd ?? '.'),
    env: { ...environment.env, ...QUIET, HOME: home, TMPDIR: tmpdir, ...start.env, ...launch.env, ...agent.env },
    stdin: isByFile ? '' : instruction,
  }
}

/** Relative to HOME. */
const INSTRUCTION = '.polar/instruction.md'

/** Variables that many programs honour. */
const QUIET = { DO_NOT_TRACK: '1', NO_UPDATE_NOTIFIER: '1' }

function copiesOf({ name, skillsFolder }: Harness, source: string | undefined, home: string): LaunchPlan['copies'] {
  if (source === undefined) return []
  if (skillsFolder !== undefined) return [{ source, target: posix.join(home, skillsFolder) }]
  throw new RolloutError('config.invalid', `The harness ${name} does not support skills. Remove skills_path.`)
}

/** A task must not change the variables that lead the harness to the gateway: its calls would not be recorded. */
function assertOwnVariables(
  { name }: Harness,
  requested: Readonly<Record<string, string>>,
  ours: Readonly<Record<string, string>>,
  { baseUrl, key }: Pick<HarnessSetup, 'baseUrl' | 'key'>,
): void {
  const isReserved = (variable: string): boolean =>
    ['HOME', 'TMPDIR'].includes(variable) || ours[variable] === key || (ours[variable]?.startsWith(baseUrl) ?? false)
  const reserved = Object.keys(requested).filter(isReserved)
  if (reserved.length === 0) return
  throw new RolloutError(
    'config.invalid',
    `The environment of ${name} cannot set ${reserved.join(', ')}: polar sets it.`,
  )
}

/** Creates the folders and files of a plan on this machine, for a run without a sandbox. */
export async function placeLaunch({ folders, files, copies }: LaunchPlan): Promise<void> {
  const options = { recursive: true, mode: 0o700 }
  for (const folder of folders) await mkdir(folder, options)
  for (const [path, text] of Object.entries(files)) {
    await mkdir(dirname(path), options)
    await writeFile(path, text, { mode: 0o600 })
  }
  for (const { source, target } of copies) {
    await mkdir(dirname(target), options)
    await cp(source, target, { recursive: true, dereference: true })
  }
}
