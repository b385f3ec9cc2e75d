import type { Clock } from '../../lib/async/clock.ts'
import type { LeaseAnswer, LeaseRoom } from '../../store/dispatch/port.ts'

export interface DeskRoom extends LeaseRoom {
  /** How many of the free slots would only wait at the node, for another to be over there. Default 0. */
  ahead?: number
}

export interface LeaseDeskDeps {
  lease(nodeId: string, room: LeaseRoom): Promise<LeaseAnswer>
  clock: Clock
  monotonic: () => number
  /** A node that was not heard of for longer is given nothing: it may be frozen, with its connection open. */
  longestSilenceMs: number
}

interface Waiter {
  nodeId: string
  room: LeaseRoom
  /** It has slots that nobody works at; else it only takes in stock. */
  isIdle: boolean
  /** Nodes of one kind are served alike. */
  kind: string
  /** It has to be looked for work for this one. */
  isDue: boolean
  /** When the node last said anything here. */
  heardAt: number
  /** Has only just come: it is looked for this one whatever others found. */
  isNew: boolean
  /** Waits no longer; it may be that it is just being looked after. */
  isOver: boolean
  settle(answer: LeaseAnswer): void
  fail(error: unknown): void
}

/** How many are looked after at once; the rest of the connections is for other things. */
const WIDTH = 4

/**
 * Nodes that wait for work. When there may be some they are served one after the other, those with slots that stand idle
 * before those that would only take it in stock, and of these whoever came first; where one was given nothing, others of
 * its kind are not even asked for. So a thousand that wait cost a few statements.
 */
export class LeaseDesk {
  readonly #deps: LeaseDeskDeps
  readonly #waiters = new Set<Waiter>()
  /** Kinds for which there was nothing since it last rang. */
  readonly #emptyKinds = new Set<string>()
  #serving = 0
  /** How often it rang. */
  #rings = 0

  constructor(deps: LeaseDeskDeps) {
    this.#deps = deps
  }

  get waiting(): number {
    return this.#waiters.size
  }

  /** There may be work. */
  ring(): void {
    this.#rings += 1
    this.#emptyKinds.clear()
    for (const waiter of this.#waiters) waiter.isDue = true
    this.#serve()
  }

  /** The node is there: it has renewed what it has. */
  hear(nodeId: string): void {
    for (const waiter of this.#waiters) if (waiter.nodeId === nodeId) waiter.heardAt = this.#deps.monotonic()
  }

  /** Something about this node has changed: whoever waits for it asks again. */
  dismiss(nodeId: string): void {
    for (const waiter of this.#waiters) if (waiter.nodeId === nodeId) waiter.settle(NOTHING)
  }

  /** Work, as soon as there is some; nothing once the time is over or the signal is aborted. */
  async take(nodeId: string, asked: DeskRoom, waitMs: number, signal: AbortSignal): Promise<LeaseAnswer> {
    const { ahead = 0, ...room } = asked
    // One call at a time: an earlier one that still waits has been given up by the node.
    this.dismiss(nodeId)
    if (waitMs === 0 || signal.aborted) return this.#deps.lease(nodeId, room)
    const { promise, resolve, reject } = Promise.withResolvers<LeaseAnswer>()
    const idle = room.freeSlots - ahead
    const waiter: Waiter = {
      nodeId,
      // What it would take in stock it asks for again, once it has nothing better to do.
      room: idle > 0 ? { ...room, freeSlots: idle } : { ...room },
      isIdle: idle > 0,
      heardAt: this.#deps.monotonic(),
      kind: JSON.stringify(room.labels?.toSorted() ?? nodeId),
      isDue: true,
      isNew: true,
      isOver: false,
      settle: resolve,
      fail: reject,
    }
    const leave = (): void => {
      waiter.isOver = true
      if (this.#waiters.has(waiter)) waiter.settle(NOTHING)
    }
    this.#waiters.add(waiter)
    const stop = this.#deps.clock.after(waitMs, leave)
    signal.addEventListener('abort', leave, { once: true })
    this.#serve()
    try {
      return await promise
    } finally {
      this.#waiters.delete(waiter)
      stop()
      signal.removeEventListener('abort', leave)
    }
  }

  #serve(): void {
    while (this.#serving < WIDTH) {
      const waiter = this.#nextDue()
      if (waiter === undefined) return
      this.#serving += 1
      void this.#lookFor(waiter).finally(() => {
        this.#serving -= 1
        this.#serve()
      })
    }
  }

  #nextDue(): Waiter | undefined {
    let stocking: Waiter | undefined
    for (const waiter of this.#waiters) {
      if (!waiter.isDue) continue
      if (!waiter.isNew && this.#emptyKinds.has(waiter.kind)) waiter.isDue = false
      else if (waiter.isIdle) return waiter
      else stocking ??= waiter
    }
    return stocking
  }

  /** While it is being looked after nobody else may settle it, or what it was given would be lost. */
  async #lookFor(waiter: Waiter): Promise<void> {
    waiter.isDue = false
    waiter.isNew = false
    this.#waiters.delete(waiter)
    // One that is there asks again at once.
    const { monotonic, longestSilenceMs } = this.#deps
    if (monotonic() - waiter.heardAt > longestSilenceMs) return waiter.settle(NOTHING)
    const ringsBefore = this.#rings
    try {
      const answer = await this.#deps.lease(waiter.nodeId, waiter.room)
      // What was lost on the way was taken back now.
      delete waiter.room.holding
      if (answer.orders.length > 0 || answer.node !== 'member' || waiter.isOver) return waiter.settle(answer)
      if (this.#rings === ringsBefore) this.#emptyKinds.add(waiter.kind)
      else waiter.isDue = true
      this.#waiters.add(waiter)
    } catch (error) {
      waiter.fail(error)
    }
  }
}

const NOTHING: LeaseAnswer = { orders: [], node: 'member' }
