import { randomUUID } from 'node:crypto'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import type { NodeRegistrationRequest, NodeStageMetrics } from '../../model/node.ts'
import { isTerminal } from '../../model/session.ts'
import type { SessionProgress } from '../node.ts'
import type { HeldLease } from './lease-book.ts'
import type { OfferClient } from './offer.ts'
import type { WorkerClient } from './worker-node.ts'

/** What the server says of a lease. */
export type Renewed = Awaited<ReturnType<WorkerClient['renewLeases']>>['outcomes'][number]

type Lease = Pick<HeldLease, 'sessionId' | 'attempt'>

/** How long a call for work may wait for some, at the server. */
const LONG_POLL_SECONDS = 30
const CALL_MS = 30_000
/** Of one part of a result, over a slow line. */
const UPLOAD_MS = 120_000
/** For what is polite to say before going, to a server that may be gone itself. */
export const PARTING_MS = 5000
/** In one call; a node that had more would be a cluster. */
const MOST_LEASES = 10_000

/** A node's line to its server: all that it says, in the name of this process, and how long it waits for an answer. */
export class ServerLine {
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

  /** Ends all that is under way. */
  close(): void {
    this.#closed.abort(new Error('The worker has ended.'))
  }

  async join(
    about: Omit<NodeRegistrationRequest, 'node_id'> & { labels: string[]; version: string },
    { holding, replaces }: { holding: readonly Lease[]; replaces?: string },
    signal: AbortSignal,
  ) {
    const body = { ...about, boot_id: this.#bootId, holding: toWire(holding), ...(replaces && { replaces }) }
    const ask = (within: AbortSignal) => this.#client.joinNode({ ...this.#us, body, signal: within })
    const answer = await this.#call(CALL_MS, ask, signal)
    if (answer.kind === 'joined') this.#inlineBytes = answer.max_inline_bytes ?? 0
    return answer
  }

  lease(room: { slots: number; ahead: number }, affinity: string[], holding: readonly Lease[], signal: AbortSignal) {
    const body = {
      free_slots: room.slots,
      ahead: room.ahead,
      affinity,
      holding: toWire(holding),
      boot_id: this.#bootId,
      wait: LONG_POLL_SECONDS,
    }
    const ms = LONG_POLL_SECONDS * 1000 + CALL_MS
    return this.#call(ms, (within) => this.#client.leaseSessions({ ...this.#us, body, signal: within }), signal)
  }

  renew(
    leases: readonly HeldLease[],
    {
      ms,
      metrics,
      progressOf,
    }: { ms: number; metrics: NodeStageMetrics; progressOf: (id: string) => SessionProgress | undefined },
  ) {
    const renewals = leases.slice(0, MOST_LEASES).map((held) => toRenewal(held, progressOf))
    const body = { renewals, metrics, boot_id: this.#bootId }
    return this.#call(ms, (signal) => this.#client.renewLeases({ ...this.#us, body, signal }))
  }

  /** Whether the server still waits for this attempt of ours. Throws when it does not say. */
  async isWanted({ sessionId, attempt }: Lease, signal: AbortSignal): Promise<boolean> {
    const body = { renewals: toWire([{ sessionId, attempt }]), boot_id: this.#bootId }
    const { outcomes } = await this.#call(
      CALL_MS,
      (within) => this.#client.renewLeases({ ...this.#us, body, signal: within }),
      signal,
    )
    return outcomes.some((each) => each.session_id === sessionId && each.attempt === attempt && each.kind === 'held')
  }

  release(leases: readonly Lease[]) {
    const body = { leases: toWire(leases), boot_id: this.#bootId }
    return this.#call(PARTING_MS, (signal) => this.#client.releaseLeases({ ...this.#us, body, signal }))
  }

  drain() {
    return this.#call(PARTING_MS, (signal) => this.#client.drainNode({ ...this.#us, signal }))
  }

  leave() {
    const query = { boot_id: this.#bootId }
    return this.#call(PARTING_MS, (signal) => this.#client.leaveNode({ ...this.#us, query, signal }))
  }

  /** For results. A server that takes a call and never answers must not hold up a delivery for ever. */
  get uploads(): OfferClient {
    const { beginUpload, getUpload, putPart, completeSession } = this.#client
    const limited =
      <I extends { signal?: AbortSignal }, A>(call: (input: I) => Promise<A>) =>
      (input: I): Promise<A> =>
        this.#call(UPLOAD_MS, (signal) => call({ ...input, signal }), input.signal)
    return {
      inlineBytes: this.#inlineBytes,
      beginUpload: limited(beginUpload),
      getUpload: limited(getUpload),
      putPart: limited(putPart),
      completeSession: limited(completeSession),
    }
  }

  get #us() {
    return { params: { node_id: this.#nodeId } }
  }

  /** Given up when it takes longer, or is not wanted any more. */
  async #call<T>(ms: number, ask: (signal: AbortSignal) => Promise<T>, signal = this.#closed.signal): Promise<T> {
    const late = new AbortController()
    const stop = this.#clock.after(ms, () => late.abort(tooLate(ms)))
    try {
      return await ask(AbortSignal.any([late.signal, signal]))
    } finally {
      stop()
    }
  }
}

function toWire(leases: readonly Lease[]): { session_id: string; attempt: number }[] {
  return leases.slice(0, MOST_LEASES).map(({ sessionId, attempt }) => ({ session_id: sessionId, attempt }))
}

function toRenewal(held: HeldLease, progressOf: (id: string) => SessionProgress | undefined) {
  const { sessionId, attempt, session, isFinished } = held
  const status = session?.status
  const progress = isFinished ? undefined : progressOf(sessionId)
  return {
    session_id: sessionId,
    attempt,
    ...(status === undefined || isTerminal(status) ? {} : { status }),
    ...(progress === undefined ? {} : { progress }),
  }
}

function tooLate(ms: number): RolloutError {
  return new RolloutError('server.unreachable', `The server did not answer within ${(ms / 1000).toFixed(1)} s.`)
}
