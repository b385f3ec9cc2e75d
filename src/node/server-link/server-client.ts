import { randomUUID } from 'node:crypto'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import type { NodeRegistrationRequest, NodeStageMetrics } from '../../model/node.ts'
import { isTerminal, type SessionProgress } from '../../model/session.ts'
import type { ResultClient } from './deliver-result.ts'
import type { LeaseCapacity } from './lease-capacity.ts'
import type { HeldLease } from './lease-table.ts'
import type { WorkerClient } from './worker-node.ts'

/** The server's answer about one lease. */
export type Renewed = Awaited<ReturnType<WorkerClient['renewLeases']>>['outcomes'][number]

type Lease = Pick<HeldLease, 'sessionId' | 'attempt'>

/** How long the server may hold a request until a session is available or the policy state changes. */
const LONG_POLL_SECONDS = 30
const REQUEST_MS = 30_000
/** Time limit for one part of a result over a slow connection. */
const UPLOAD_MS = 120_000
/** Time limit of requests that a stopping node sends; the server may be unreachable. */
export const LEAVE_MS = 5000
/** Limits the leases of one request. */
const MAX_LEASES = 10_000

/** Sends the requests of one node process, each with a time limit. */
export class ServerClient {
  readonly #client: WorkerClient
  readonly #nodeId: string
  readonly #clock: Clock
  readonly #bootId = randomUUID()
  readonly #closed = new AbortController()
  #inlineBytes = 0

  constructor({ client, nodeId, clock }: { client: WorkerClient; nodeId: string; clock: Clock }) {
    this.#client = client
    this.#nodeId = nodeId
    this.#clock = clock
  }

  /** Aborts all requests. */
  close(): void {
    this.#closed.abort(new Error('The worker ended.'))
  }

  async join(
    about: Omit<NodeRegistrationRequest, 'node_id'> & { labels: string[]; version: string },
    { holding, replaces }: { holding: readonly Lease[]; replaces?: string },
    signal: AbortSignal,
  ) {
    const body = { ...about, boot_id: this.#bootId, holding: toWire(holding), replaces }
    const join = (limited: AbortSignal) => this.#client.joinNode({ ...this.#node, body, signal: limited })
    const answer = await this.#request(REQUEST_MS, join, signal)
    if (answer.kind === 'joined') this.#inlineBytes = answer.max_inline_bytes ?? 0
    return answer
  }

  lease(capacity: LeaseCapacity, affinity: string[], holding: readonly Lease[], signal: AbortSignal) {
    const body = {
      free_slots: capacity.slots,
      ahead: capacity.ahead,
      affinity,
      holding: toWire(holding),
      boot_id: this.#bootId,
      wait: LONG_POLL_SECONDS,
    }
    const ms = LONG_POLL_SECONDS * 1000 + REQUEST_MS
    const lease = (limited: AbortSignal) => this.#client.leaseSessions({ ...this.#node, body, signal: limited })
    return this.#request(ms, lease, signal)
  }

  renew(
    leases: readonly HeldLease[],
    {
      ms,
      metrics,
      progressOf,
    }: { ms: number; metrics: NodeStageMetrics; progressOf: (id: string) => SessionProgress | undefined },
  ) {
    const renewals = leases.slice(0, MAX_LEASES).map((held) => toRenewal(held, progressOf))
    const body = { renewals, metrics, boot_id: this.#bootId }
    return this.#request(ms, (signal) => this.#client.renewLeases({ ...this.#node, body, signal }))
  }

  /** Confirms what the gateway has applied, and returns the current state; with `isLong`, once it changes. */
  pollPolicy({
    change,
    version,
    inFlight,
    isLong,
  }: {
    change: number
    version: number | null
    inFlight: number
    isLong: boolean
  }) {
    const wait = isLong ? LONG_POLL_SECONDS : 0
    const body = { boot_id: this.#bootId, change, version, in_flight: inFlight, wait }
    return this.#request(wait * 1000 + REQUEST_MS, (signal) => this.#client.pollPolicy({ ...this.#node, body, signal }))
  }

  /** Whether the server still waits for this attempt of this node. Rejects if the server gives no answer. */
  async isLeased({ sessionId, attempt }: Lease, signal: AbortSignal): Promise<boolean> {
    const body = { renewals: toWire([{ sessionId, attempt }]), boot_id: this.#bootId }
    const renew = (limited: AbortSignal) => this.#client.renewLeases({ ...this.#node, body, signal: limited })
    const { outcomes } = await this.#request(REQUEST_MS, renew, signal)
    return outcomes.some((each) => each.session_id === sessionId && each.attempt === attempt && each.kind === 'held')
  }

  release(leases: readonly Lease[]) {
    const body = { leases: toWire(leases), boot_id: this.#bootId }
    return this.#request(LEAVE_MS, (signal) => this.#client.releaseLeases({ ...this.#node, body, signal }))
  }

  drain() {
    return this.#request(LEAVE_MS, (signal) => this.#client.drainNode({ ...this.#node, signal }))
  }

  leave() {
    const query = { boot_id: this.#bootId }
    return this.#request(LEAVE_MS, (signal) => this.#client.leaveNode({ ...this.#node, query, signal }))
  }

  /** The requests that deliver results, each with a time limit. */
  get uploads(): ResultClient {
    const { beginUpload, getUpload, putPart, completeSession } = this.#client
    const limited =
      <I extends { signal?: AbortSignal }, A>(call: (input: I) => Promise<A>) =>
      (input: I): Promise<A> =>
        this.#request(UPLOAD_MS, (signal) => call({ ...input, signal }), input.signal)
    return {
      inlineBytes: this.#inlineBytes,
      beginUpload: limited(beginUpload),
      getUpload: limited(getUpload),
      putPart: limited(putPart),
      completeSession: limited(completeSession),
    }
  }

  get #node() {
    return { params: { node_id: this.#nodeId } }
  }

  async #request<T>(ms: number, send: (signal: AbortSignal) => Promise<T>, signal = this.#closed.signal): Promise<T> {
    const late = new AbortController()
    const message = `The server did not answer within ${(ms / 1000).toFixed(1)} s.`
    const stop = this.#clock.after(ms, () => late.abort(new RolloutError('server.unreachable', message)))
    try {
      return await send(AbortSignal.any([late.signal, signal]))
    } finally {
      stop()
    }
  }
}

function toWire(leases: readonly Lease[]): { session_id: string; attempt: number }[] {
  return leases.slice(0, MAX_LEASES).map(({ sessionId, attempt }) => ({ session_id: sessionId, attempt }))
}

function toRenewal(held: HeldLease, progressOf: (id: string) => SessionProgress | undefined) {
  const { sessionId, attempt, session, isFinished } = held
  const status = session?.status
  const progress = isFinished ? undefined : progressOf(sessionId)
  return {
    session_id: sessionId,
    attempt,
    status: status === undefined || isTerminal(status) ? undefined : status,
    progress: progress && { calls: progress.calls, tokens: progress.tokens, oldest_version: progress.oldestVersion },
  }
}
