import type { Logger } from 'pino'
import { pause } from '../../client/send.ts'
import { certificateHint } from '../../client/server-error.ts'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import { Backoff } from './backoff.ts'
import type { HeldLease } from './lease-book.ts'
import { isForbidden, troubleOf } from './server-errors.ts'
import type { ServerLine } from './server-client.ts'

/** What the server says to one that it lets in. */
export type Welcome = Extract<Awaited<ReturnType<ServerLine['join']>>, { kind: 'joined' }>

export interface MembershipOptions {
  line: ServerLine
  /** Who we are. */
  about: Parameters<ServerLine['join']>[0]
  /** What we have, as of now. */
  held: () => readonly HeldLease[]
  /** Each time that the server has let us in. */
  onJoined: (welcome: Welcome) => void
  away: { baseMs: number; maxMs: number }
  clock: Clock
  random: () => number
  logger: Logger
}

/** That a server knows this process as the node it says it is. */
export class Membership {
  readonly #options: MembershipOptions
  #hasJoined = false
  #joining: Promise<void> | undefined

  constructor(options: MembershipOptions) {
    this.#options = options
  }

  /** Waits for a server that is not there. Rejects when the server refuses us. */
  async begin(signal: AbortSignal): Promise<void> {
    const { away, clock, random, logger } = this.#options
    const backoff = new Backoff({ ...away, random })
    for (;;) {
      try {
        return await this.#join(signal)
      } catch (error) {
        signal.throwIfAborted()
        const trouble = troubleOf(error)
        if (trouble === 'stale' || trouble === 'broken' || isForbidden(error) || isMistrusted(error)) throw error
        logger.warn({ err: error }, 'the server cannot be reached yet')
        await pause(backoff.next(), signal, clock)
      }
    }
  }

  /**
   * After a call that was refused. A server that does not know us any more is told again who we are. When it knows another
   * process by our name, the refusal that says so.
   */
  async restore(error: unknown, signal: AbortSignal): Promise<RolloutError | undefined> {
    if (saysReplaced(error)) return error
    if (!(error instanceof RolloutError) || error.failure.status !== 404) return undefined
    try {
      await this.#join(signal)
    } catch (cause) {
      if (saysReplaced(cause)) return cause
      this.#options.logger.warn({ err: cause }, 'the server did not let us join again')
    }
    return undefined
  }

  /** Those who ask while that is under way wait for the same answer. */
  #join(signal: AbortSignal): Promise<void> {
    this.#joining ??= this.#joinOver(undefined, signal).finally(() => (this.#joining = undefined))
    return this.#joining
  }

  async #joinOver(replaces: string | undefined, signal: AbortSignal): Promise<void> {
    const { line, about, held, onJoined } = this.#options
    const answer = await line.join(about, { holding: held(), replaces }, signal)
    if (answer.kind === 'taken') {
      // Who begins takes the place of whoever was there; who was there already has lost it.
      if (!this.#hasJoined) return this.#joinOver(answer.boot_id, signal)
      throw new RolloutError('request.stale', 'Another process has joined by the name of this node.')
    }
    this.#hasJoined = true
    onJoined(answer)
  }
}

/** Which authorities a process trusts is said when it starts, so waiting would not help. */
function isMistrusted(error: unknown): boolean {
  return error instanceof RolloutError && certificateHint(error.cause) !== undefined
}

function saysReplaced(error: unknown): error is RolloutError {
  return error instanceof RolloutError && error.failure.status === 409
}
