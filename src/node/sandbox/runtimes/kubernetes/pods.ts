import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { RolloutError } from '../../../../model/failure.ts'
import type { Cluster } from './cluster.ts'

const POLL_MS = [50, 100, 200, 300, 500] as const
/** Reasons for waiting that do not resolve by themselves. */
const IMAGE_REASONS = new Set(['ErrImagePull', 'ImagePullBackOff', 'InvalidImageName', 'ErrImageNeverPull'])
const FATAL_REASONS = new Set([
  'CreateContainerConfigError',
  'CreateContainerError',
  'RunContainerError',
  'CrashLoopBackOff',
])

const State = z.looseObject({
  waiting: z.looseObject({ reason: z.string().optional(), message: z.string().optional() }).nullish(),
  running: z.looseObject({}).nullish(),
  terminated: z
    .looseObject({ exitCode: z.number().optional(), reason: z.string().optional(), message: z.string().optional() })
    .nullish(),
})
const Statuses = z.array(z.looseObject({ name: z.string(), state: State.nullish() })).nullish()

export const Pod = z.looseObject({
  metadata: z.looseObject({
    name: z.string(),
    creationTimestamp: z.string().optional(),
    deletionTimestamp: z.string().optional(),
    annotations: z.record(z.string(), z.string()).nullish(),
  }),
  status: z
    .looseObject({
      phase: z.string().optional(),
      reason: z.string().optional(),
      message: z.string().optional(),
      conditions: z
        .array(z.looseObject({ type: z.string(), status: z.string(), message: z.string().optional() }))
        .nullish(),
      containerStatuses: Statuses,
      initContainerStatuses: Statuses,
    })
    .optional(),
})
export type Pod = z.infer<typeof Pod>

export function podPath(namespace: string, name = ''): string {
  return `/api/v1/namespaces/${namespace}/pods${name === '' ? '' : `/${name}`}`
}

/** Waits until all containers run. Throws the reason if they cannot. */
export async function awaitRunning(
  cluster: Cluster,
  name: string,
  { timeoutMs, signal }: { timeoutMs: number; signal: AbortSignal },
): Promise<void> {
  const deadline = performance.now() + timeoutMs
  for (let attempt = 0; ; attempt += 1) {
    // Served from the API server's cache instead of its database: many pods may be polled at once.
    const query = { resourceVersion: '0' }
    const path = podPath(cluster.access.namespace, name)
    const pod = Pod.parse(await cluster.call('GET', path, { query: attempt < 2 ? {} : query, signal }))
    assertHopeful(pod)
    const statuses = pod.status?.containerStatuses ?? []
    if (statuses.length > 0 && statuses.every(({ state }) => state?.running != null)) return
    if (performance.now() > deadline)
      throw new RolloutError(
        'runtime.start-failed',
        `Pod ${name} did not start in ${timeoutMs / 1000} s: ${whyNot(pod)}`,
      )
    await sleep(POLL_MS[Math.min(attempt, POLL_MS.length - 1)], undefined, { signal })
  }
}

function assertHopeful(pod: Pod): void {
  const { name, deletionTimestamp } = pod.metadata
  const { phase, reason, message } = pod.status ?? {}
  for (const { state } of [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])]) {
    const waiting = state?.waiting
    if (waiting?.reason === undefined) continue
    if (IMAGE_REASONS.has(waiting.reason))
      throw new RolloutError(
        'runtime.image-missing',
        `Pod ${name} cannot pull its image (${waiting.reason}): ${waiting.message ?? ''}; check runtime.pull and runtime.pullSecrets`,
      )
    if (FATAL_REASONS.has(waiting.reason))
      throw new RolloutError('runtime.start-failed', `Pod ${name}: ${waiting.reason}: ${waiting.message ?? ''}`)
  }
  if (phase === 'Failed' || phase === 'Succeeded' || deletionTimestamp !== undefined) {
    const ended = [...(pod.status?.initContainerStatuses ?? []), ...(pod.status?.containerStatuses ?? [])]
      .map(({ name: container, state }) => [container, state?.terminated] as const)
      .find(([, terminated]) => terminated != null && terminated.exitCode !== 0)
    const details =
      ended === undefined ? '' : `; ${ended[0]} ended with ${ended[1]?.exitCode} ${ended[1]?.reason ?? ''}`
    throw new RolloutError(
      'runtime.start-failed',
      `Pod ${name} ended at once: ${message ?? reason ?? phase ?? 'the pod is being deleted'}${details}; its image needs /bin/sh and sleep`,
    )
  }
}

function whyNot(pod: Pod): string {
  const unmet = pod.status?.conditions?.find(({ status, message }) => status === 'False' && message !== undefined)
  const waiting = pod.status?.containerStatuses?.find(({ state }) => state?.waiting != null)?.state?.waiting
  return unmet?.message ?? waiting?.message ?? waiting?.reason ?? pod.status?.phase ?? 'unknown reason'
}

export function ranOutOfMemory(pod: Pod, container: string): boolean {
  const status = pod.status?.containerStatuses?.find(({ name }) => name === container)
  return status?.state?.terminated?.reason === 'OOMKilled'
}
