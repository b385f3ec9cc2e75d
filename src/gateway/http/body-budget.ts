import { RolloutError } from '../../model/failure.ts'

/** Limits of the request bodies of calls in flight. */
export interface BudgetLimits {
  /** Limit of one session. A single body is always admitted. */
  sessionBytes: number
  totalBytes: number
  /** How long a body waits for the release of others before it is rejected. */
  waitMs: number
}

const MB = 1024 ** 2

export const DEFAULT_BUDGET: BudgetLimits = { sessionBytes: 128 * MB, totalBytes: 512 * MB, waitMs: 30_000 }

/** Admitted for every session: a few large sessions cannot block the calls of the others. */
const GUARANTEED_BYTES = 4 * MB

const RETRY_AFTER_SECONDS = 5

interface Waiting {
  body: HeldBody
  bytes: number
  settle(failure?: RolloutError): void
}

/** Memory budget for request bodies of all sessions. Bodies over the budget wait; those of one session in order. */
export class BodyBudget {
  readonly limits: BudgetLimits
  readonly #bySession = new Map<string, number>()
  readonly #waiting = new Set<Waiting>()
  #used = 0

  constructor(limits: BudgetLimits) {
    this.limits = limits
  }

  get used(): number {
    return this.#used
  }

  /** Returns an empty body of a session. Its disposal releases its bytes. */
  open(sessionId: string, signal: AbortSignal): HeldBody {
    return new HeldBody(sessionId, signal, {
      acquire: (body, bytes) => this.#acquire(body, bytes),
      add: (body, bytes) => this.#add(body, bytes),
    })
  }

  #acquire(body: HeldBody, bytes: number): Promise<void> | undefined {
    const isBehind = this.#waiting.values().some((other) => other.body.sessionId === body.sessionId)
    if (!isBehind && this.#exceededLimit(body, bytes) === undefined) {
      this.#add(body, bytes)
      return undefined
    }
    return this.#wait(body, bytes)
  }

  async #wait(body: HeldBody, bytes: number): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const onAbort = (): void => settle(new RolloutError('request.client-gone', 'The harness closed the call.'))
    const timer = setTimeout(() => settle(this.#rejection(body, bytes)), this.limits.waitMs).unref()
    const settle = (failure?: RolloutError): void => {
      clearTimeout(timer)
      body.signal.removeEventListener('abort', onAbort)
      this.#waiting.delete(waiting)
      if (failure === undefined) resolve()
      else reject(failure)
    }
    const waiting = { body, bytes, settle }
    this.#waiting.add(waiting)
    body.signal.addEventListener('abort', onAbort)
    if (body.signal.aborted) onAbort()
    await promise
  }

  #add(body: HeldBody, bytes: number): void {
    const { sessionId } = body
    body.bytes += bytes
    this.#used += bytes
    const own = (this.#bySession.get(sessionId) ?? 0) + bytes
    if (own === 0) this.#bySession.delete(sessionId)
    else this.#bySession.set(sessionId, own)
    if (bytes < 0) this.#admit()
  }

  #admit(): void {
    const behind = new Set<string>()
    for (const waiting of this.#waiting) {
      const { body, bytes } = waiting
      if (behind.has(body.sessionId)) continue
      if (this.#exceededLimit(body, bytes) === undefined) {
        this.#add(body, bytes)
        waiting.settle()
      } else behind.add(body.sessionId)
    }
  }

  #exceededLimit({ sessionId, bytes: held }: HeldBody, bytes: number): 'session' | 'total' | undefined {
    const own = this.#bySession.get(sessionId) ?? 0
    if (own > held && own + bytes > this.limits.sessionBytes) return 'session'
    if (own + bytes > GUARANTEED_BYTES && this.#used > held && this.#used + bytes > this.limits.totalBytes)
      return 'total'
    return undefined
  }

  #rejection(body: HeldBody, bytes: number): RolloutError {
    const { sessionBytes, totalBytes } = this.limits
    if (this.#exceededLimit(body, bytes) === 'total') {
      const message = `The gateway holds ${toMb(this.#used)} MB of request bodies; the limit is ${toMb(totalBytes)} MB. Try again later.`
      return new RolloutError('request.over-quota', message, { status: 503, retryAfterSeconds: RETRY_AFTER_SECONDS })
    }
    const own = this.#bySession.get(body.sessionId) ?? 0
    const message = `This session has ${toMb(own)} MB of request bodies in flight; the limit is ${toMb(sessionBytes)} MB. Try again when one of its calls has ended.`
    return new RolloutError('request.over-quota', message, { retryAfterSeconds: RETRY_AFTER_SECONDS })
  }
}

function toMb(bytes: number): number {
  return Math.round(bytes / MB)
}

interface Budget {
  acquire(body: HeldBody, bytes: number): Promise<void> | undefined
  add(body: HeldBody, bytes: number): void
}

/** The part of the budget that one request body holds. */
export class HeldBody implements Disposable {
  readonly sessionId: string
  readonly signal: AbortSignal
  readonly #budget: Budget
  /** Written only by the budget. */
  bytes = 0

  constructor(sessionId: string, signal: AbortSignal, budget: Budget) {
    this.sessionId = sessionId
    this.signal = signal
    this.#budget = budget
  }

  /** Returns undefined when the bytes are admitted at once. Rejects with `request.over-quota` after the wait limit. */
  grow(bytes: number): Promise<void> | undefined {
    return this.#budget.acquire(this, bytes)
  }

  shrinkTo(bytes: number): void {
    if (bytes < this.bytes) this.#budget.add(this, bytes - this.bytes)
  }

  [Symbol.dispose](): void {
    this.shrinkTo(0)
  }
}
