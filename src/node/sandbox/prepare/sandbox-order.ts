import { randomUUID } from 'node:crypto'
import { posix } from 'node:path'
import { RolloutError } from '../../../model/failure.ts'
import type { SessionOrder } from '../../../model/session-order.ts'
import type { RuntimeSpec } from '../../../model/task.ts'
import { requestedNetwork } from '../../../model/task-notices.ts'
import { FOLDER_VARIABLES, stepWithSessionDir } from '../../session/session-environment.ts'
import type {
  Door,
  Mount,
  NetworkPolicy,
  Runtime,
  RuntimeCapabilities,
  SandboxLimits,
  SandboxSpec,
} from '../runtimes/runtime.ts'

/** How long a sandbox is kept for a node that does not say it still wants it. */
export const LEASE_MS = 5 * 60_000

/** A fork bomb ends here unless a task says otherwise. */
const USUAL_PIDS = 4096

export interface SandboxParts {
  role: 'agent' | 'grader'
  nodeId: string
  mounts: readonly Mount[]
  door?: Door
  /** Memory of a sandbox whose task names none, in MB; absent: not limited. */
  usualMemoryMb?: number
  now: number
}

/** The kind of sandbox a task wants; undefined leaves it to the node. */
export function backendOf(spec: RuntimeSpec | null | undefined): string | undefined {
  return spec?.backend ?? (spec?.image == null ? undefined : 'docker')
}

/** What a task says of its sandbox, in our words. Throws `runtime.unsupported` for what this kind cannot keep. */
export function toSandboxSpec(
  { sessionId, task }: SessionOrder,
  runtime: Pick<Runtime, 'kind' | 'capabilities'>,
  parts: SandboxParts,
): SandboxSpec {
  const spec = task.runtime
  const { role, nodeId, door } = parts
  assertFolders(spec, runtime)
  const network = toNetwork(spec, runtime)
  return {
    // Two attempts at the same session may meet on one machine; ids of sandboxes are never the same twice.
    id: `${role}-${randomUUID()}`,
    ...(spec?.image == null ? {} : { image: spec.image }),
    workdir: spec?.workdir ?? '/workspace',
    folders: Object.values(FOLDER_VARIABLES),
    env: { ...FOLDER_VARIABLES, ...spec?.env },
    limits: toLimits(spec, runtime, parts.usualMemoryMb),
    network,
    ...(door === undefined ? {} : { door }),
    mounts: [
      ...parts.mounts,
      ...toMounts('runtime.kwargs.volumes', spec?.kwargs['volumes']),
      ...(network.kind === 'open' ? toMounts('runtime.internet_volumes', spec?.internet_volumes) : []),
    ],
    labels: { node: nodeId, session: sessionId, task: task.task_id.slice(0, 200), role },
    leaseUntil: parts.now + LEASE_MS,
  }
}

/** A runtime that does not isolate files has the session's folder elsewhere; its path would be one of this machine. */
function assertFolders(spec: RuntimeSpec | null | undefined, runtime: Pick<Runtime, 'kind' | 'capabilities'>): void {
  const step = spec == null || runtime.capabilities.isolatesFiles ? undefined : stepWithSessionDir(spec)
  if (step === undefined) return
  const { SESSION_DIR: path } = FOLDER_VARIABLES
  throw unsupported(runtime, `has no ${path}, which prepare step ${step} names; $SESSION_DIR names the folder there`)
}

function toLimits(
  spec: RuntimeSpec | null | undefined,
  runtime: Pick<Runtime, 'kind' | 'capabilities'>,
  usualMemoryMb: number | undefined,
): SandboxLimits {
  const { limits: able } = runtime.capabilities
  const asked = {
    ...(spec?.cpus == null ? {} : { cpus: spec.cpus }),
    ...(spec?.memory_mb == null ? {} : { memoryMb: spec.memory_mb }),
    ...(spec?.storage_mb == null ? {} : { diskMb: spec.storage_mb }),
    ...(spec?.pids == null ? {} : { pids: spec.pids }),
  }
  if ((spec?.gpus ?? 0) > 0) throw unsupported(runtime, 'gives no sandbox a GPU')
  const missing = Object.keys(asked).filter((limit) => !able.some((known) => known === limit))
  if (missing.length > 0) throw unsupported(runtime, `cannot limit ${missing.join(', ')} on this machine`)
  return {
    ...(able.includes('pids') ? { pids: USUAL_PIDS } : {}),
    // Some runtimes keep files of a sandbox with a disk limit in memory, and the kernel counts them as such.
    ...(able.includes('memoryMb') && usualMemoryMb !== undefined
      ? { memoryMb: usualMemoryMb + (asked.diskMb ?? 0) }
      : {}),
    ...asked,
  }
}

function toNetwork(
  spec: RuntimeSpec | null | undefined,
  runtime: { kind: string; capabilities: RuntimeCapabilities },
): NetworkPolicy {
  const able = runtime.capabilities.networks
  const kind = requestedNetwork(spec)
  const asked: NetworkPolicy | undefined =
    kind === undefined ? undefined : kind === 'allow' ? { kind, hosts: spec?.allow_hosts ?? [] } : { kind }
  // Nothing was said: as little as this kind can. Who chooses one that keeps nothing apart has been told by its name.
  if (asked === undefined) return { kind: able.includes('none') ? 'none' : 'open' }
  if (able.includes(asked.kind)) return asked
  throw unsupported(runtime, `knows the networks ${able.join(', ')} only, not ${asked.kind}`)
}

/** NVIDIA's volumes, as `SOURCE:/TARGET[:ro|rw]`. */
function toMounts(field: string, given: unknown): Mount[] {
  const volumes = given ?? []
  if (!Array.isArray(volumes)) throw invalid(`${field} is a list of SOURCE:/TARGET`)
  return volumes.map((volume) => {
    const [source = '', target = '', mode = 'rw', ...more] = String(volume).split(':')
    if (!posix.isAbsolute(source) || !posix.isAbsolute(target) || more.length > 0 || !['ro', 'rw'].includes(mode)) {
      throw invalid(`${field}: "${String(volume)}" is not /SOURCE:/TARGET or /SOURCE:/TARGET:ro`)
    }
    return { source, target, isReadOnly: mode === 'ro' }
  })
}

function unsupported({ kind }: { kind: string }, what: string): RolloutError {
  return new RolloutError('runtime.unsupported', `The runtime ${kind} ${what}; change the task, or choose another.`)
}

function invalid(message: string): RolloutError {
  return new RolloutError('config.invalid', `${message}.`)
}
