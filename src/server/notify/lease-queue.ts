import type { Clock } from '../../lib/async/clock.ts'
import { onAbort } from '../../lib/async/until-aborted.ts'
import type { LeaseRequest, LeaseResponse } from '../../store/dispatch/port.ts'

export interface QueuedLeaseRequest extends LeaseRequest {
  /** How many of the free slots would only prefetch: the session would wait on the node for a slot. Default 0. */
  ahead?: number
}

export interface LeaseQueueDeps {
  lease(nodeId: string, request: LeaseRequest): Promise<LeaseResponse>
  clock: Clock
  monotonic: () => number
  /** A node that sent no request for longer gets no lease: its process may hang with the connection open. */
  maxSilenceMs: number
}

interface Waiter {
  nodeId: string
  request: LeaseRequest
  /** The node has idle slots; otherwise it only prefetches. */
  isIdle: boolean
  /** Nodes of the same kind (same labels) can lease the same sessions. */
  kind: string
  /** A lease must be tried for this node. */
  isDue: boolean
  /** Monotonic time of the last request of the node. */
  seenAt: number
  /** Not tried yet: tried even if other nodes of the kind found nothing. */
  isNew: boolean
  /** The wait has ended, possibly while a lease is being tried. */
  isOver: boolean
  settle(response: LeaseResponse): void
  fail(error: unknown): void
}

/** Concurrent lease statements; the remaining connections serve other requests. */
const MAX_CONCURRENT = 4

/**
 * Lease requests that wait for work. When sessions may have become leasable, the nodes are served one after the other: nodes
 * with idle slots before nodes that prefetch, then in order of arrival. When a node gets nothing, other nodes of its kind
 * are skipped, so a thousand waiting nodes cost a few statements.
 */
export class LeaseQueue {
  readonly #deps: LeaseQueueDeps
  readonly #waiters = new Set<Waiter>()
  /** Kinds that got nothing since the last notification. */
  readonly #emptyKinds = new Set<string>()
  #active = 0
  #notifications = 0

  constructor(deps: LeaseQueueDeps) {
    this.#deps = deps
  }

  get waiting(): number {
    return this.#waiters.size
  }

  /** Sessions may have become leasable. */
  notify(): void {
    this.#notifications += 1
    this.#emptyKinds.clear()
    for (const waiter of this.#waiters) waiter.isDue = true
    this.#serve()
  }

  /** The node sent another request, so it is alive. */
  markAlive(nodeId: string): void {
    for (const waiter of this.#waiters) if (waiter.nodeId === nodeId) waiter.seenAt = this.#deps.monotonic()
  }

  /** Ends the waiting requests of a node whose state changed; the node sends a new request. */
  dismiss(nodeId: string): void {
    for (const waiter of this.#waiters) if (waiter.nodeId === nodeId) waiter.settle(NOTHING)
  }

  /** Resolves as soon as sessions are leased; empty after `waitMs` or when the signal is aborted. */
  async lease(nodeId: string, queued: QueuedLeaseRequest, waitMs: number, signal: AbortSignal): Promise<LeaseResponse> {
    const { ahead = 0, ...request } = queued
    // A node sends one request at a time, so it has abandoned an earlier one that still waits.
    this.dismiss(nodeId)
    if (waitMs === 0 || signal.aborted) return this.#deps.lease(nodeId, request)
    const { promise, resolve, reject } = Promise.withResolvers<LeaseResponse>()
    const idle = request.freeSlots - ahead
    const waiter: Waiter = {
      nodeId,
      // The node requests sessions to prefetch again once its idle slots are filled.
      request: idle > 0 ? { ...request, freeSlots: idle } : { ...request },
      isIdle: idle > 0,
      seenAt: this.#deps.monotonic(),
      kind: JSON.stringify(request.labels?.toSorted() ?? nodeId),
      isDue: true,
      isNew: true,
      isOver: false,
      settle: resolve,
      fail: reject,
    }
    const end = (): void => {
      waiter.isOver = true
      if (this.#waiters.has(waiter)) waiter.settle(NOTHING)
    }
    this.#waiters.add(waiter)
    const stop = this.#deps.clock.after(waitMs, end)
    using _ = onAbort(signal, end)
    this.#serve()
    try {
      return await promise
    } finally {
      this.#waiters.delete(waiter)
      stop()
    }
  }

  #serve(): void {
    while (this.#active < MAX_CONCURRENT) {
      const waiter = this.#nextDue()
      if (waiter === undefined) return
      this.#active += 1
      void this.#tryLease(waiter).finally(() => {
        this.#active -= 1
        this.#serve()
      })
    }
  }

  #nextDue(): Waiter | undefined {
    let prefetching: Waiter | undefined
    for (const waiter of this.#waiters) {
      if (!waiter.isDue) continue
      if (!waiter.isNew && this.#emptyKinds.has(waiter.kind)) waiter.isDue = false
      else if (waiter.isIdle) return waiter
      else prefetching ??= waiter
    }
    return prefetching
  }

  /** Removes the waiter from the set meanwhile: if another path settled it, the leased sessions would be lost. */
  async #tryLease(waiter: Waiter): Promise<void> {
    waiter.isDue = false
    waiter.isNew = false
    this.#waiters.delete(waiter)
    // A live node sends a new request at once.
    const { monotonic, maxSilenceMs } = this.#deps
    if (monotonic() - waiter.seenAt > maxSilenceMs) return waiter.settle(NOTHING)
    const notificationsBefore = this.#notifications
    try {
      const response = await this.#deps.lease(waiter.nodeId, waiter.request)
      // The first try has released the leases that did not reach the node.
      delete waiter.request.holding
      if (response.orders.length > 0 || response.node !== 'member' || waiter.isOver) return waiter.settle(response)
      if (this.#notifications === notificationsBefore) this.#emptyKinds.add(waiter.kind)
      else waiter.isDue = true
      this.#waiters.add(waiter)
    } catch (error) {
      waiter.fail(error)
    }
  }
}

const NOTHING: LeaseResponse = { orders: [], node: 'member' }
