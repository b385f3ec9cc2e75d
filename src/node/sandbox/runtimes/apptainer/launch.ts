import type { ChildProcess } from 'node:child_process'
import { readdir, readFile, realpath, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { CleanSpawn } from '../../linux/process/clean-spawn.ts'
import { COVERED, HOST_ENV, INSIDE_HOME, INSIDE_PATH, insidePath, resolveMountSource } from '../../linux/files/paths.ts'
import { childrenOf, identify, isAlive, signalProcess, type ProcessRef } from '../../linux/process/processes.ts'
import { rootName } from '../../linux/host-runtime.ts'
import { buildSeccompFilter } from '../../linux/limits/seccomp-filter.ts'
import type { Isolation } from '../../linux/namespaced-sandbox.ts'
import type { SandboxRecord } from '../../linux/records.ts'
import { untilExit, readyLines, START_MS } from '../../linux/process/started.ts'
import { toSysctls, type UserLimits } from '../../linux/limits/user-quotas.ts'
import type { SandboxSpec } from '../runtime.ts'
import { step, type Architecture } from './steps.ts'

/** Keeps the sandbox running until its input closes, which also happens when this process ends. */
const INIT = 'echo ready; exec >/dev/null 2>&1; read -r _'
/** Without root: folder of the parts from which finish.pl assembles the root folder. */
const PARTS = '/.polar'
/** Folder of a snapshot's layer in Apptainer's overlay format: with an `upper` in it. */
export const LAYER = 'layer'
/** Variables that Apptainer sets, not the image. */
const OWN_VARIABLE =
  /^(?:(?:APPTAINER|SINGULARITY)_.*|HOME|LD_LIBRARY_PATH|OLDPWD|PROMPT_COMMAND|PS1|PWD|SHLVL|TERM|_)$/

/** Who this process is to the kernel. As root, sandboxes belong to `owner`; otherwise to our own user. */
export interface Privileges {
  architecture: Architecture
  isRoot: boolean
  /** User id on the machine. */
  owner: number
  /** The same user and group inside. */
  inside: { user: number; group: number }
}

interface ApptainerProcesses {
  /** Apptainer itself, outside; the sandbox ends with it. */
  child: ChildProcess
  monitor: ProcessRef
  /** The sandbox's first process. */
  first: ProcessRef
  /** Holds the user namespace of commands. */
  users: ProcessRef
  /** Apptainer's helpers, such as the mount helper for images without root. They do not end by themselves. */
  helpers: readonly ProcessRef[]
}

export interface LaunchOptions {
  program: readonly [string, ...string[]]
  privileges: Privileges
  image: string
  /** Layers of the snapshots that the sandbox is based on, the uppermost first. */
  layers: readonly string[]
  record: SandboxRecord
  folder: string
  /** Folder of all sandboxes, which no sandbox may see. */
  hidden: string
  /** Share of the user's limits for this sandbox. */
  quotas: UserLimits
  spawn: CleanSpawn
}

/** Starts the processes; none is left when this throws. */
export async function launch(spec: SandboxSpec, options: LaunchOptions, signal: AbortSignal): Promise<Isolation> {
  const { privileges, folder, record, spawn } = options
  const { architecture, isRoot, owner, inside } = privileges
  const mounts = await Promise.all(
    spec.mounts.map(async (mount) => ({
      ...mount,
      source: await resolveMountSource(mount.source),
      target: insidePath(mount.target),
    })),
  )
  const targets = await Promise.all(mounts.map(async ({ source, target }) => `${await kindOf(source)}${target}`))
  const workdir = insidePath(spec.workdir)
  const { diskMb, memoryMb } = spec.limits
  const place = [rootName(record), folder, sharedOf(spec), diskMb ?? '', memoryMb ?? ''] as const
  const folders = (spec.folders ?? []).map(insidePath)
  const owned = [workdir, INSIDE_HOME, owner, isRoot, targets.length, folders.length, ...targets, ...folders]
  const [file, ...args] = step(architecture, 'launch', ...place, ...owned, ...apptainerLine(spec, options, mounts))
  const deadline = AbortSignal.any([signal, AbortSignal.timeout(START_MS)])
  const env = { ...HOST_ENV, HOME: '/nonexistent', APPTAINER_CONFIGDIR: join(folder, 'apptainer'), LC_ALL: 'C.UTF-8' }
  const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'pipe'], env, detached: true })
  child.stdin!.on('error', () => {})
  let users: ProcessRef | undefined
  try {
    await readyLines(child, ['ready'], deadline)
    const monitor = await identify(child.pid!)
    const { first, helpers } = await familyOf(child.pid!)
    if (monitor === undefined || first === undefined) throw new Error('the process ended at once')
    users = await holdUsers(options, first, deadline)
    const kinds = mounts.flatMap(({ target, isReadOnly }) => [isReadOnly ? 'readonly' : 'writable', target])
    const hide = mounts.flatMap(({ source, target }) => hiddenBelow(source, target, options.hidden))
    const ownedWorkdir = spec.snapshot === undefined ? workdir : ''
    const parts = isRoot ? ['', ''] : [PARTS, options.layers.length]
    const finish = [
      first,
      isRoot,
      owner,
      inside.user,
      rootName(record),
      ownedWorkdir,
      INSIDE_HOME,
      ...parts,
      ...kinds,
      ...hide,
    ]
    const { exitCode, stderr } = await runProgram(step(architecture, 'finish', ...finish), { env: HOST_ENV })
    if (exitCode !== 0) throw new Error(stderr.trim() || `finish.pl exited with ${exitCode}`)
    return toIsolation(spec, options, { child, monitor, first, users, helpers }, await environmentOf(first))
  } catch (cause) {
    if (users !== undefined) await signalProcess(users, 'SIGKILL')
    child.kill('SIGKILL')
    signal.throwIfAborted()
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new RolloutError('runtime.start-failed', `Cannot start sandbox ${spec.id}: ${reason}`, { cause })
  }
}

function toIsolation(
  { network }: SandboxSpec,
  { privileges, folder }: LaunchOptions,
  processes: ApptainerProcesses,
  env: Readonly<Record<string, string>>,
): Isolation {
  const { child, monitor, first, users, helpers } = processes
  const { architecture, isRoot, owner } = privileges
  const hasNetwork = network.kind !== 'open'
  const seccompFilter = buildSeccompFilter(architecture, { mayMount: false }).toString('hex')
  return {
    child,
    first,
    processes: [first, monitor, users, ...helpers],
    env,
    memoryStorage: `/proc/${first.pid}/root/dev/shm`,
    written: join(folder, 'rw'),
    upper: join(folder, 'rw', 'upper'),
    snapshotLayer: `${LAYER}/upper`,
    canTell: true,
    networkPrefix: ['nsenter', '-t', String(first.pid), ...(isRoot ? [] : ['-U', '--preserve-credentials']), '-n'],
    namespaceCommand: () => step(architecture, 'createNamespace', first, isRoot, owner, hasNetwork, ...COVERED),
    enter: (process) => step(architecture, 'enter', process, users, isRoot, owner, hasNetwork, seccompFilter),
    visit: (command) => step(architecture, 'visit', monitor, isRoot, ...command),
    end: () => endApptainer(processes),
  }
}

async function familyOf(monitor: number): Promise<{ first: ProcessRef | undefined; helpers: ProcessRef[] }> {
  let first: ProcessRef | undefined
  const helpers: ProcessRef[] = []
  for (const pid of await childrenOfAllThreads(monitor)) {
    const ref = await identify(pid)
    const status = await readFile(`/proc/${pid}/status`, 'latin1').catch(() => '')
    if (/^NSpid:.*\s1$/m.test(status)) first = ref
    else if (ref !== undefined) helpers.push(ref)
  }
  return { first, helpers }
}

async function childrenOfAllThreads(pid: number): Promise<number[]> {
  const threads = await readdir(`/proc/${pid}/task`).catch(() => [])
  const lists = threads.map((thread) => readFile(`/proc/${pid}/task/${thread}/children`, 'latin1').catch(() => ''))
  return (await Promise.all(lists)).join(' ').split(' ').filter(Boolean).map(Number)
}

function apptainerLine(
  spec: SandboxSpec,
  { program, privileges, image, layers, folder }: LaunchOptions,
  mounts: SandboxSpec['mounts'],
): string[] {
  const rw = join(folder, 'rw')
  const shared = { source: join(folder, sharedOf(spec)), target: '/dev/shm', isReadOnly: false }
  const parts = [
    { source: rw, target: `${PARTS}/rw`, isReadOnly: false },
    ...layers.map((source, index) => ({ source, target: `${PARTS}/${index}`, isReadOnly: true })),
  ]
  const overlays = [...layers.toReversed().map((layer) => `${layer}:ro`), rw]
  return [
    ...program,
    '--silent',
    'exec',
    '--containall',
    '--no-privs',
    ...(privileges.isRoot ? [] : ['--userns']),
    '--no-mount',
    'home,tmp,sys,cwd,bind-paths',
    '--no-eval',
    '--hostname',
    'sandbox',
    ...(spec.network.kind === 'open' ? [] : ['--net', '--network', 'none']),
    ...(privileges.isRoot ? overlays.flatMap((overlay) => ['--overlay', overlay]) : []),
    ...[...(privileges.isRoot ? [] : parts), shared, ...mounts].flatMap((mount) => ['--mount', toMount(mount)]),
    image,
    '/bin/sh',
    '-c',
    INIT,
  ]
}

/** Source of /dev/shm. With a disk limit, it counts as written data. */
function sharedOf({ limits }: SandboxSpec): string {
  return limits.diskMb === undefined ? 'shm' : 'rw/shm'
}

/** Renders comma-separated values in Apptainer's format. */
function toMount({ source, target, isReadOnly }: SandboxSpec['mounts'][number]): string {
  const fields = ['type=bind', `source=${source}`, `destination=${target}`, ...(isReadOnly ? ['ro'] : [])]
  return fields.map((field) => (/[",\n]/.test(field) ? `"${field.replaceAll('"', '""')}"` : field)).join(',')
}

function hiddenBelow(source: string, target: string, hidden: string): string[] {
  const top = source.endsWith('/') ? source.slice(0, -1) : source
  return hidden === top || hidden.startsWith(`${top}/`) ? ['hide', `${target}${hidden.slice(top.length)}`] : []
}

async function holdUsers(
  { privileges, quotas, spawn }: LaunchOptions,
  first: ProcessRef,
  signal: AbortSignal,
): Promise<ProcessRef> {
  const { architecture, isRoot, owner, inside } = privileges
  const limits = [quotas.pendingSignals ?? '', quotas.messageQueueBytes ?? '', ...toSysctls(quotas)]
  const [file, ...args] = step(architecture, 'holdUsers', first, isRoot, owner, inside.user, inside.group, ...limits)
  const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'pipe'], env: HOST_ENV, detached: true })
  try {
    await readyLines(child, ['ready'], signal)
    const ref = await identify(child.pid!)
    if (ref !== undefined) return ref
    throw new Error('the process ended at once')
  } catch (cause) {
    child.kill('SIGKILL')
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new Error(`no user namespace for commands: ${reason}`, { cause })
  }
}

/** Returns the variables that the image sets; Apptainer passes them to the first process's child. */
async function environmentOf(first: ProcessRef): Promise<Readonly<Record<string, string>>> {
  const [holder] = await childrenOf(first.pid)
  const text = holder === undefined ? '' : await readFile(`/proc/${holder}/environ`, 'utf8').catch(() => '')
  const pairs = text
    .split('\0')
    .filter((pair) => pair.includes('='))
    .map((pair): [string, string] => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)])
    // Apptainer sets LANG for every container.
    .filter(([name, value]) => !OWN_VARIABLE.test(name) && !(name === 'LANG' && value === 'C'))
  return { PATH: INSIDE_PATH, ...Object.fromEntries(pairs), HOME: INSIDE_HOME }
}

async function endApptainer({ child, monitor, first, users, helpers }: ApptainerProcesses): Promise<void> {
  const ended = untilExit(child)
  const all = [first, monitor, users, ...helpers]
  for (const ref of all) await signalProcess(ref, 'SIGKILL')
  await ended
  // The first process ends after all others.
  for (const ref of all) while (await isAlive(ref)) await sleep(2)
}

async function kindOf(source: string): Promise<'d' | 'f'> {
  return (await stat(source)).isDirectory() ? 'd' : 'f'
}

/** An image is a file or the root folder of a tree. */
export async function imageAt(path: string): Promise<string> {
  const stats = await stat(path).catch(() => undefined)
  if (stats?.isFile() === true || stats?.isDirectory() === true) return realpath(path)
  throw new RolloutError('runtime.image-missing', `${path} is neither a SIF file nor the root folder of an image`)
}
