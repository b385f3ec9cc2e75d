import type { Logger } from 'pino'
import { pause } from '../../client/send.ts'
import { certificateHint } from '../../client/server-error.ts'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import { Backoff } from './backoff.ts'
import type { HeldLease } from './lease-table.ts'
import { classifyServerError, isForbidden } from './server-errors.ts'
import type { ServerClient } from './server-client.ts'

/** The response to an accepted join request. */
type Joined = Extract<Awaited<ReturnType<ServerClient['join']>>, { kind: 'joined' }>

export interface MembershipOptions {
  server: ServerClient
  /** The description of this node in join requests. */
  about: Parameters<ServerClient['join']>[0]
  /** Returns the leases that the node holds now. */
  held: () => readonly HeldLease[]
  /** Called each time the node has joined. */
  onJoined: (joined: Joined, signal: AbortSignal) => Promise<void>
  retry: { baseMs: number; maxMs: number }
  clock: Clock
  random: () => number
  logger: Logger
}

/** Joins the server as a node, and joins again if the server no longer knows the node. */
export class Membership {
  readonly #options: MembershipOptions
  #hasJoined = false
  #joining: Promise<void> | undefined

  constructor(options: MembershipOptions) {
    this.#options = options
  }

  /** Retries while the server is unreachable. Rejects if the server refuses the node. */
  async join(signal: AbortSignal): Promise<void> {
    const { retry, clock, random, logger } = this.#options
    const backoff = new Backoff({ ...retry, random })
    for (;;) {
      try {
        return await this.#join(signal)
      } catch (error) {
        signal.throwIfAborted()
        const kind = classifyServerError(error)
        if (kind === 'stale' || kind === 'rejected' || isForbidden(error) || isUntrusted(error)) throw error
        logger.warn({ err: error }, 'the server is unreachable; retrying')
        await pause(backoff.next(), signal, clock)
      }
    }
  }

  /**
   * Joins again after a failed request, if the server does not know the node. Returns the error if another process has
   * joined with the same node id.
   */
  async rejoin(error: unknown, signal: AbortSignal): Promise<RolloutError | undefined> {
    if (isReplaced(error)) return error
    if (!(error instanceof RolloutError) || error.failure.status !== 404) return undefined
    try {
      await this.#join(signal)
    } catch (cause) {
      if (isReplaced(cause)) return cause
      this.#options.logger.warn({ err: cause }, 'the node could not join the server again')
    }
    return undefined
  }

  /** Concurrent callers share one request. */
  #join(signal: AbortSignal): Promise<void> {
    this.#joining ??= this.#sendJoin(undefined, signal).finally(() => (this.#joining = undefined))
    return this.#joining
  }

  /** `replaces`: the boot id of the process that this process replaces. */
  async #sendJoin(replaces: string | undefined, signal: AbortSignal): Promise<void> {
    const { server, about, held, onJoined } = this.#options
    const answer = await server.join(about, { holding: held(), replaces }, signal)
    if (answer.kind === 'taken') {
      // A process that starts replaces the process that joined before; a process that has joined before was replaced.
      if (!this.#hasJoined) return this.#sendJoin(answer.boot_id, signal)
      throw new RolloutError('request.stale', 'Another process has joined with the same node id.')
    }
    this.#hasJoined = true
    await onJoined(answer, signal)
  }
}

/** The trusted authorities of a process are fixed at its start, so a retry would fail as well. */
function isUntrusted(error: unknown): boolean {
  return error instanceof RolloutError && certificateHint(error.cause) !== undefined
}

function isReplaced(error: unknown): error is RolloutError {
  return error instanceof RolloutError && error.failure.status === 409
}
