import { cp, mkdir, writeFile } from 'node:fs/promises'
import { dirname, posix } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import type { AgentSpec } from '../../model/task.ts'
import type { ProgramStart } from './install/harness-bundle.ts'
import type { Harness, HarnessSetup } from './presets/harness.ts'

/** What a task says about its agent, less what names it. */
export type AgentOptions = Pick<AgentSpec, 'settings' | 'env' | 'mcp_servers' | 'skills_path' | 'custom_shell'>

export const NO_OPTIONS: AgentOptions = { settings: {}, env: {}, mcp_servers: [] }

/** Where a harness is to run, in the words of the sandbox that it will run in. */
export interface LaunchPlace {
  /** How its program starts, as `bundleStart` says it for the path the bundle is mounted at. Absent: by its name. */
  start?: ProgramStart
  /** Empty, and the harness's alone. */
  home: string
  workdir: string
  /** What programs in general need, such as PATH; nothing that configures a harness. */
  env: Readonly<Record<string, string>>
}

/** What it is to do, and with which model. */
export interface LaunchOrder extends Pick<
  HarnessSetup,
  'sessionId' | 'baseUrl' | 'key' | 'model' | 'contextTokens' | 'images'
> {
  instruction: string
  agent: AgentOptions
  /** After those of the preset. */
  extraArgs?: readonly string[]
}

/**
 * One run of a harness, ready to be carried out in any sandbox: make the folders, write the files, copy the trees, start the
 * command. All paths are absolute, as the sandbox sees them, but for the source of a copy.
 */
export interface LaunchPlan {
  /** For the owner only, parents too. */
  folders: readonly string[]
  /** With mode 0600: some hold the key. */
  files: Readonly<Record<string, string>>
  /** Whole trees from where the task says they are. */
  copies: readonly { source: string; target: string }[]
  command: readonly [string, ...string[]]
  cwd: string
  /** All of it. */
  env: Readonly<Record<string, string>>
  stdin: string
}

/** The one way a preset becomes a command. Pure. Throws RolloutError `config.invalid` for what the preset cannot do. */
export function planLaunch(harness: Harness, place: LaunchPlace, order: LaunchOrder): LaunchPlan {
  const { home } = place
  const { instruction, agent, extraArgs = [], ...model } = order
  const instructionFile = posix.join(home, INSTRUCTION)
  const shell = agent.custom_shell ?? undefined
  const launch = harness.configure({
    ...model,
    home,
    instructionFile,
    mcpServers: agent.mcp_servers,
    hasSkills: agent.skills_path != null,
    settings: agent.settings,
    ...(shell === undefined ? {} : { shell }),
  })
  assertOwnVariables(harness, agent.env, launch.env, model)
  const isByFile = harness.instruction === 'file'
  const files = { ...launch.files, ...(isByFile ? { [INSTRUCTION]: instruction } : {}) }
  const start = place.start ?? { command: [harness.command], env: {} }
  const tmpdir = posix.join(home, 'tmp')
  return {
    folders: [tmpdir],
    files: Object.fromEntries(Object.entries(files).map(([path, text]) => [posix.join(home, path), text])),
    copies: copiesOf(harness, agent.skills_path ?? undefined, home),
    command: [...(start.command as [string, ...string[]]), ...launch.args, ...extraArgs],
    cwd: posix.resolve(place.workdir, shell?.cwd ?? '.'),
    env: { ...place.env, ...QUIET, HOME: home, TMPDIR: tmpdir, ...start.env, ...launch.env, ...agent.env },
    stdin: isByFile ? '' : instruction,
  }
}

/** Below HOME. */
const INSTRUCTION = '.polar/instruction.md'

/** What many programs agree on. */
const QUIET = { DO_NOT_TRACK: '1', NO_UPDATE_NOTIFIER: '1' }

function copiesOf({ name, skillsFolder }: Harness, source: string | undefined, home: string): LaunchPlan['copies'] {
  if (source === undefined) return []
  if (skillsFolder !== undefined) return [{ source, target: posix.join(home, skillsFolder) }]
  throw new RolloutError('config.invalid', `The harness ${name} has no skills, so skills_path cannot be used.`)
}

/** A task may set anything but what leads the harness to the gateway, or its calls would go unrecorded. */
function assertOwnVariables(
  { name }: Harness,
  asked: Readonly<Record<string, string>>,
  ours: Readonly<Record<string, string>>,
  { baseUrl, key }: Pick<HarnessSetup, 'baseUrl' | 'key'>,
): void {
  const isTaken = (variable: string): boolean =>
    ['HOME', 'TMPDIR'].includes(variable) || ours[variable] === key || (ours[variable]?.startsWith(baseUrl) ?? false)
  const taken = Object.keys(asked).filter(isTaken)
  if (taken.length === 0) return
  throw new RolloutError('config.invalid', `The environment of ${name} cannot set ${taken.join(', ')}: polar does.`)
}

/** Puts what a plan wants on this machine, for a run without a sandbox. */
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
