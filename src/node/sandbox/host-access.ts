import { lstat, realpath } from 'node:fs/promises'
import { basename, dirname, isAbsolute, join, sep } from 'node:path'
import * as z from 'zod'
import { succeeds } from '../../lib/async/succeeds.ts'
import { RolloutError } from '../../model/failure.ts'
import type { PrepareAction, TaskRequest } from '../../model/task.ts'
import { backendOf } from './prepare/sandbox-spec.ts'
import { isImageName } from './linux/files/image-names.ts'

/** Resources of this machine that other people's tasks may use; by default none. */
export const HostAccess = z.strictObject({
  paths: z
    .array(z.string().refine(isAbsolute, 'must be an absolute path'))
    .default([])
    .describe(
      'Folders that tasks may copy from, mount read-only, check out, or use as an image; links are resolved first',
    ),
  hosts: z
    .array(z.string().min(1))
    .default([])
    .describe(
      'Hosts that evaluators may call: `judge.example`, `judge.example:8443`, `*.example` for all subdomains, `*` for all',
    ),
  secrets: z
    .array(z.string().min(1))
    .default([])
    .describe('Environment variables of the node that evaluators may read; `*`: all'),
  runtimes: z
    .array(z.string().min(1))
    .optional()
    .describe('Runtimes that tasks may request; absent: all except `local`, which is allowed if it is the default'),
})
export type HostAccess = z.infer<typeof HostAccess>

/** Checks other people's tasks before they start, and requests of their evaluators. Rejects with `config.invalid`. */
export interface HostGate {
  /** Throws for a task that names a resource that is not allowed. */
  admit(task: TaskRequest): Promise<void>
  /** Throws for a file or folder that must not enter a sandbox in which a session is graded. */
  assertGradable(source: string, submission: string): Promise<void>
  mayCall(url: URL): boolean
  maySee(secret: string): boolean
}

export interface HostGateOptions {
  access: HostAccess
  /** Runtime of tasks that name none. */
  defaultRuntime: string
  /** Files of trusted code; evaluators among them may use files in the same folder. */
  modules: readonly string[]
}

/** Resolves links of the allowed folders once: a link that changes later allows nothing new. */
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
      // The file itself is copied as it is, also if it is a link; links in its folder's path are followed.
      const folder = isAbsolute(source) ? await realpath(dirname(source)).catch(() => undefined) : undefined
      const allowed = [...gradable, ...(await realPaths([submission]))]
      if (folder === undefined || !isBelow(join(folder, basename(source)), allowed))
        throw refused('File of the evaluator', source, access.paths)
    },
    mayCall: (url) => access.hosts.some((host) => matches(url, host)),
    maySee: (secret) => access.secrets.includes(secret) || access.secrets.includes('*'),
  }
}

/** Returns all paths of the node that a task names, with the names of the fields. */
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
      // A sandbox could replace a file in a writable mount by a link between check and use.
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
  // Git decodes nothing in such a URL.
  return repository.startsWith('file://') ? repository.slice('file://'.length) : undefined
}

function assertRuntime({ runtime }: TaskRequest, allowed: readonly string[] | undefined, defaultKind: string): void {
  if (runtime?.import_path != null) return
  const kind = backendOf(runtime) ?? defaultKind
  if (isRuntimeAllowed(kind, allowed, defaultKind)) return
  throw new RolloutError('config.invalid', `runtime.backend: "${kind}" is not allowed on this node.`)
}

/** `local` isolates nothing, so a task cannot request it unless it is allowed or the default. */
export function isRuntimeAllowed(kind: string, allowed: readonly string[] | undefined, defaultKind: string): boolean {
  return allowed === undefined ? kind !== 'local' || defaultKind === 'local' : allowed.includes(kind)
}

function isBelow(path: string, roots: readonly string[]): boolean {
  return roots.some((root) => path === root || path.startsWith(root.endsWith(sep) ? root : root + sep))
}

/** Paths that do not exist are left out. */
async function realPaths(paths: readonly string[]): Promise<string[]> {
  const found = await Promise.all(paths.map((path) => realpath(path).catch(() => undefined)))
  return found.filter((path) => path !== undefined)
}

function matches(url: URL, host: string): boolean {
  const pattern = host.toLowerCase()
  if (pattern === '*') return true
  if (pattern.startsWith('*.')) return url.hostname.endsWith(pattern.slice(1))
  const port = url.port === '' ? (url.protocol === 'https:' ? '443' : '80') : url.port
  return url.hostname === pattern || `${url.hostname}:${port}` === pattern
}

/** Returns the real path of the deepest existing folder of a path; empty for a dangling link. */
async function nearestOf(path: string): Promise<string> {
  const real = await realpath(path).catch(() => undefined)
  if (real !== undefined) return real
  const isLink = await succeeds(lstat(path))
  return isLink || path === dirname(path) ? '' : nearestOf(dirname(path))
}

/** Only for a path in an allowed folder: tasks must not learn which other files exist. */
function missing(what: string, path: string): RolloutError {
  return new RolloutError('config.invalid', `${what}: ${path} does not exist on this node, or cannot be read.`)
}

/** The message is the same for existing and missing files, so that tasks cannot probe for files. */
function refused(what: string, path: string, paths: readonly string[]): RolloutError {
  const allowed = paths.length === 0 ? 'none configured' : paths.join(', ')
  const message = `${what}: ${path} is not in a folder that tasks may use on this node (${allowed}).`
  return new RolloutError('config.invalid', message)
}
