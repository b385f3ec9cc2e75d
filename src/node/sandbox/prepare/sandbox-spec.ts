import { randomUUID } from 'node:crypto'
import { posix } from 'node:path'
import { RolloutError } from '../../../model/failure.ts'
import type { SessionOrder } from '../../../model/session-order.ts'
import type { RuntimeSpec } from '../../../model/task.ts'
import { requestedNetwork } from '../../../model/task-notices.ts'
import { FOLDER_VARIABLES, stepWithSessionDir } from '../../session/session-environment.ts'
import type {
  SandboxSocket,
  Mount,
  NetworkPolicy,
  Runtime,
  RuntimeCapabilities,
  SandboxLimits,
  SandboxSpec,
} from '../runtimes/runtime.ts'

/** Lease of a sandbox; an expired sandbox is removed. */
export const LEASE_MS = 5 * 60_000

/** Limit of processes unless a task sets another. */
const DEFAULT_PIDS = 4096

export interface SandboxSpecOptions {
  role: 'agent' | 'grader'
  nodeId: string
  mounts: readonly Mount[]
  socket?: SandboxSocket
  /** Memory of a sandbox whose task sets none, in MB; absent: not limited. */
  defaultMemoryMb?: number
  now: number
}

/** The runtime that a task requests; undefined leaves the choice to the node. */
export function backendOf(spec: RuntimeSpec | null | undefined): string | undefined {
  return spec?.backend ?? (spec?.image == null ? undefined : 'docker')
}

/** Translates a task's runtime settings. Throws `runtime.unsupported` for settings that the runtime cannot enforce. */
export function toSandboxSpec(
  { sessionId, task }: SessionOrder,
  runtime: Pick<Runtime, 'kind' | 'capabilities'>,
  parts: SandboxSpecOptions,
): SandboxSpec {
  const spec = task.runtime
  const { role, nodeId, socket } = parts
  assertFolders(spec, runtime)
  const network = toNetwork(spec, runtime)
  return {
    // Random, because two attempts at the same session may run on one machine.
    id: `${role}-${randomUUID()}`,
    image: spec?.image ?? undefined,
    workdir: spec?.workdir ?? '/workspace',
    folders: Object.values(FOLDER_VARIABLES),
    env: { ...FOLDER_VARIABLES, ...spec?.env },
    limits: toLimits(spec, runtime, parts.defaultMemoryMb),
    network,
    socket,
    mounts: [
      ...parts.mounts,
      ...toMounts('runtime.kwargs.volumes', spec?.kwargs['volumes']),
      ...(network.kind === 'open' ? toMounts('runtime.internet_volumes', spec?.internet_volumes) : []),
    ],
    labels: { node: nodeId, session: sessionId, task: task.task_id.slice(0, 200), role },
    leaseUntil: parts.now + LEASE_MS,
  }
}

/**
 * A runtime that does not isolate files has the session's folder elsewhere; its path would name a folder of this
 * machine.
 */
function assertFolders(spec: RuntimeSpec | null | undefined, runtime: Pick<Runtime, 'kind' | 'capabilities'>): void {
  const step = spec == null || runtime.capabilities.isolatesFiles ? undefined : stepWithSessionDir(spec)
  if (step === undefined) return
  const { SESSION_DIR: path } = FOLDER_VARIABLES
  throw unsupported(runtime, `has no ${path}, which prepare step ${step} names; use $SESSION_DIR`)
}

function toLimits(
  spec: RuntimeSpec | null | undefined,
  runtime: Pick<Runtime, 'kind' | 'capabilities'>,
  defaultMemoryMb: number | undefined,
): SandboxLimits {
  const { limits: supported } = runtime.capabilities
  const requested = {
    ...(spec?.cpus == null ? {} : { cpus: spec.cpus }),
    ...(spec?.memory_mb == null ? {} : { memoryMb: spec.memory_mb }),
    ...(spec?.storage_mb == null ? {} : { diskMb: spec.storage_mb }),
    ...(spec?.pids == null ? {} : { pids: spec.pids }),
  }
  if ((spec?.gpus ?? 0) > 0) throw unsupported(runtime, 'does not support GPUs')
  const missing = Object.keys(requested).filter((limit) => !supported.some((known) => known === limit))
  if (missing.length > 0) throw unsupported(runtime, `cannot limit ${missing.join(', ')} on this machine`)
  return {
    ...(supported.includes('pids') ? { pids: DEFAULT_PIDS } : {}),
    // Some runtimes keep files of a sandbox with a disk limit in memory, and the kernel counts them as memory.
    ...(supported.includes('memoryMb') && defaultMemoryMb !== undefined
      ? { memoryMb: defaultMemoryMb + (requested.diskMb ?? 0) }
      : {}),
    ...requested,
  }
}

function toNetwork(
  spec: RuntimeSpec | null | undefined,
  runtime: { kind: string; capabilities: RuntimeCapabilities },
): NetworkPolicy {
  const supported = runtime.capabilities.networks
  const kind = requestedNetwork(spec)
  const requested: NetworkPolicy | undefined =
    kind === undefined ? undefined : kind === 'allow' ? { kind, hosts: spec?.allow_hosts ?? [] } : { kind }
  // Default: the strictest policy of the runtime. `local`, which isolates nothing, has `open` only.
  if (requested === undefined) return { kind: supported.includes('none') ? 'none' : 'open' }
  if (supported.includes(requested.kind)) return requested
  throw unsupported(runtime, `supports the networks ${supported.join(', ')} only, not ${requested.kind}`)
}

/** Parses NVIDIA's volumes: `SOURCE:/TARGET[:ro|rw]`. */
function toMounts(field: string, given: unknown): Mount[] {
  const volumes = given ?? []
  if (!Array.isArray(volumes)) throw invalid(`${field} must be a list of SOURCE:/TARGET`)
  return volumes.map((volume) => {
    const [source = '', target = '', mode = 'rw', ...more] = String(volume).split(':')
    if (!posix.isAbsolute(source) || !posix.isAbsolute(target) || more.length > 0 || !['ro', 'rw'].includes(mode)) {
      throw invalid(`${field}: "${String(volume)}" is not /SOURCE:/TARGET or /SOURCE:/TARGET:ro`)
    }
    return { source, target, isReadOnly: mode === 'ro' }
  })
}

function unsupported({ kind }: { kind: string }, what: string): RolloutError {
  return new RolloutError(
    'runtime.unsupported',
    `The runtime ${kind} ${what}; change the task, or choose another runtime.`,
  )
}

function invalid(message: string): RolloutError {
  return new RolloutError('config.invalid', `${message}.`)
}
