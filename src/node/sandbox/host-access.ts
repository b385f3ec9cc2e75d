import { lstat, realpath } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, sep } from 'node:path'
import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'
import type { PrepareAction, TaskRequest } from '../../model/task.ts'
import { backendOf } from './prepare/sandbox-spec.ts'
import { isImageName } from './linux/files/image-names.ts'

/** What of this machine others' tasks may use. Nothing, unless it is said here. */
export const HostAccess = z.strictObject({
  paths: z
    .array(z.string().refine(isAbsolute, 'must be an absolute path'))
    .default([])
    .describe(
      'Folders that tasks may copy from, mount read-only, check out, or take as an image; links are followed first',
    ),
  hosts: z
    .array(z.string().min(1))
    .default([])
    .describe(
      'Hosts that evaluators may call: `judge.example`, `judge.example:8443`, `*.example` for all below it, `*`',
    ),
  secrets: z
    .array(z.string().min(1))
    .default([])
    .describe('Environment variables of the node that evaluators may read; `*`: all'),
  runtimes: z
    .array(z.string().min(1))
    .optional()
    .describe(
      'Kinds of sandbox that tasks may ask for; absent: all but `local`, and that too where it is the usual one',
    ),
})
export type HostAccess = z.infer<typeof HostAccess>

/** Asked before a task of others is begun, and by what it brings while it runs. Refusals are `config.invalid`. */
export interface HostGate {
  /** Throws for a task that names what it may not have. */
  admit(task: TaskRequest): Promise<void>
  /** Throws for a file or folder that must not get into a sandbox in which a session is graded. */
  assertGradable(source: string, submission: string): Promise<void>
  mayCall(url: URL): boolean
  maySee(secret: string): boolean
}

export interface HostGateOptions {
  access: HostAccess
  /** The kind of sandbox for tasks that do not say. */
  defaultRuntime: string
  /** Files whose code is trusted; evaluators among them may bring what lies beside them. */
  modules: readonly string[]
}

/** Where the allowed folders lead is found out now: a link that is changed later allows nothing new. */
export async function openHostGate({ access, defaultRuntime, modules }: HostGateOptions): Promise<HostGate> {
  const roots = await realPaths(access.paths)
  const gradable = [...roots, ...(await realPaths(modules.map((path) => dirname(path))))]
  return {
    async admit(task) {
      assertRuntime(task, access.runtimes, defaultRuntime)
      for (const { what, path } of hostPathsOf(task)) {
        const real = isAbsolute(path) ? await realpath(path).catch(() => undefined) : undefined
        if (real === undefined && isAbsolute(path) && isBelow(await nearestOf(path), roots)) throw missing(what, path)
        if (real === undefined || !isBelow(real, roots)) throw refused(what, path, access.paths)
      }
    },
    async assertGradable(source, submission) {
      // What it is itself is copied as it is, also a link; what leads there is followed.
      const folder = isAbsolute(source) ? await realpath(dirname(source)).catch(() => undefined) : undefined
      const allowed = [...gradable, ...(await realPaths([submission]))]
      if (folder === undefined || !isBelow(join(folder, basename(source)), allowed))
        throw refused('A file of the evaluator', source, access.paths)
    },
    mayCall: (url) => access.hosts.some((host) => matches(url, host)),
    maySee: (secret) => access.secrets.includes(secret) || access.secrets.includes('*'),
  }
}

/** All that a task wants from the disk of the node, and by which of its words. */
export function hostPathsOf({ runtime, agent }: TaskRequest): { what: string; path: string }[] {
  const named: { what: string; path: string }[] = []
  const add = (what: string, path: string): void => void named.push({ what, path })
  const addSteps = (what: string, steps: readonly PrepareAction[]): void => {
    for (const [index, step] of steps.entries()) {
      const place = `${what}[${index}]`
      if (step.type === 'upload_file' || step.type === 'upload_dir') add(`${place}.source`, step.source)
      if (step.type === 'checkout') {
        const local = localRepository(step.repository)
        if (local !== undefined) add(`${place}.repository`, local)
      }
    }
  }
  addSteps('runtime.prepare', runtime?.prepare ?? [])
  addSteps('runtime.eval_prepare', runtime?.eval_prepare ?? [])
  if (agent.skills_path != null) add('agent.skills_path', agent.skills_path)
  if (runtime?.image != null && !isNamed(runtime.image, backendOf(runtime))) add('runtime.image', runtime.image)
  const addVolumes = (what: string, volumes: unknown): void => {
    for (const volume of Array.isArray(volumes) ? volumes : []) {
      const [source = '', , mode] = String(volume).split(':')
      // What a sandbox can write to, it could turn into a link between the look and the use.
      if (mode !== 'ro') throw new RolloutError('config.invalid', `${what}: "${volume}" must end in :ro on this node.`)
      add(what, source)
    }
  }
  addVolumes('runtime.kwargs.volumes', runtime?.kwargs['volumes'])
  addVolumes('runtime.internet_volumes', runtime?.internet_volumes)
  return named
}

/** Whether an image is a name in a registry or an engine; any other image is a file of this machine. */
function isNamed(image: string, backend: string | undefined): boolean {
  if (backend === 'docker' || backend === 'kubernetes') return true
  return backend === 'apptainer' && isImageName(image)
}

function localRepository(repository: string): string | undefined {
  if (repository.startsWith('/')) return repository
  // As git reads it: nothing in it is decoded.
  return repository.startsWith('file://') ? repository.slice('file://'.length) : undefined
}

function assertRuntime({ runtime }: TaskRequest, allowed: readonly string[] | undefined, usual: string): void {
  if (runtime?.import_path != null) return
  const kind = backendOf(runtime) ?? usual
  if (isRuntimeAllowed(kind, allowed, usual)) return
  throw new RolloutError('config.invalid', `runtime.backend: "${kind}" may not be asked for on this node.`)
}

/** `local` keeps nothing apart, so nobody gets it by asking for it. */
export function isRuntimeAllowed(kind: string, allowed: readonly string[] | undefined, usual: string): boolean {
  return allowed === undefined ? kind !== 'local' || usual === 'local' : allowed.includes(kind)
}

function isBelow(path: string, roots: readonly string[]): boolean {
  return roots.some((root) => path === root || path.startsWith(root.endsWith(sep) ? root : root + sep))
}

/** Those that are not there allow nothing. */
async function realPaths(paths: readonly string[]): Promise<string[]> {
  const found = await Promise.all(paths.map((path) => realpath(path).catch(() => undefined)))
  return found.filter((path) => path !== undefined)
}

function matches(url: URL, host: string): boolean {
  const wanted = host.toLowerCase()
  if (wanted === '*') return true
  if (wanted.startsWith('*.')) return url.hostname.endsWith(wanted.slice(1))
  const port = url.port === '' ? (url.protocol === 'https:' ? '443' : '80') : url.port
  return url.hostname === wanted || `${url.hostname}:${port}` === wanted
}

/** The real path of the last folder of a path that exists; empty for a link that leads nowhere. */
async function nearestOf(path: string): Promise<string> {
  const real = await realpath(path).catch(() => undefined)
  if (real !== undefined) return real
  const isLink = await lstat(path).then(
    () => true,
    () => false,
  )
  return isLink || path === dirname(path) ? '' : nearestOf(dirname(path))
}

/** Only of a path in an allowed folder: what else is on the machine is not for tasks to find out. */
function missing(what: string, path: string): RolloutError {
  return new RolloutError('config.invalid', `${what}: ${path} does not exist on this node, or cannot be read.`)
}

/** Says the same of what is not there and of what is: nobody finds out by asking. */
function refused(what: string, path: string, paths: readonly string[]): RolloutError {
  const allowed = paths.length === 0 ? 'none is set' : paths.join(', ')
  const message = `${what}: ${path} is not in a folder that tasks may use on this node (${allowed}).`
  return new RolloutError('config.invalid', message)
}
