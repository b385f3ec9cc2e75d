import type { Logger } from 'pino'
import { pause } from '../../client/send.ts'
import type { GatewayControl } from '../../gateway/gateway.ts'
import type { Clock } from '../../lib/async/clock.ts'
import type { PolicyState } from '../../model/policy.ts'
import { Backoff } from './backoff.ts'
import type { ServerClient } from './server-client.ts'

/** The parts of a gateway that the policy state controls. */
export type PolicyGateway = Pick<GatewayControl, 'pause' | 'resume' | 'setWeightVersion' | 'status'>

export interface PolicyLinkOptions {
  server: Pick<ServerClient, 'pollPolicy'>
  gateway: PolicyGateway
  /** Called when a poll failed: the node may have to join again. */
  onError: (error: unknown) => Promise<void>
  retry: { baseMs: number; maxMs: number }
  clock: Clock
  random: () => number
  logger: Logger
}

/** How often a draining gateway reports its calls in flight, and how often it counts them. */
const REPORT_MS = 500
const COUNT_MS = 50

/**
 * Applies the server's policy state to the gateway of this node, and confirms it. Without a connection to the server the
 * gateway keeps its state: a paused gateway stays paused.
 */
export class PolicyLink {
  readonly #options: PolicyLinkOptions
  #applied: PolicyState | undefined
  /** Two states must not be applied at the same time. */
  #applying: Promise<void> = Promise.resolve()

  constructor(options: PolicyLinkOptions) {
    this.#options = options
  }

  /**
   * Applies the state of a join response. Resolves when the gateway has it, or when the signal is aborted. Undefined: the
   * server has no policy state.
   */
  async join(state: PolicyState | undefined, signal: AbortSignal): Promise<void> {
    if (state === undefined) return
    // The database may be a new one, so its counter may be lower.
    await this.#apply(state, { isJoin: true }, signal)
  }

  /** Polls the state until the signal is aborted. */
  async run(signal: AbortSignal): Promise<void> {
    const { server, onError, clock, random, retry, logger } = this.#options
    const backoff = new Backoff({ ...retry, random })
    while (this.#applied !== undefined && !signal.aborted) {
      try {
        const { change, version } = this.#applied
        const inFlight = await this.#countInFlight(signal)
        // A draining gateway reports again soon.
        const isDraining = this.#isDraining && inFlight > 0
        const state = await server.pollPolicy({ change, version, inFlight, isLong: !isDraining })
        await this.#apply(state, { isJoin: false }, signal)
        backoff.reset()
      } catch (error) {
        if (signal.aborted) return
        logger.warn({ err: error }, 'the policy state could not be read; retrying')
        await onError(error)
        await pause(backoff.next(), signal, clock).catch(() => {})
      }
    }
  }

  get #isDraining(): boolean {
    return this.#applied?.paused === true && this.#applied.mode === 'drain'
  }

  /** While the gateway drains, waits a moment for its calls to end. */
  async #countInFlight(signal: AbortSignal): Promise<number> {
    const { gateway, clock } = this.#options
    for (let waitedMs = 0; ; waitedMs += COUNT_MS) {
      const { inFlight } = await gateway.status()
      if (!this.#isDraining || inFlight === 0 || waitedMs >= REPORT_MS) return inFlight
      await pause(COUNT_MS, signal, clock)
    }
  }

  #apply(state: PolicyState, { isJoin }: { isJoin: boolean }, signal: AbortSignal): Promise<void> {
    const applied = this.#applying.then(async () => {
      const isNew = isJoin ? state.change !== this.#applied?.change : state.change > (this.#applied?.change ?? -1)
      if (isNew) await this.#applyUntilDone(state, signal)
    })
    this.#applying = applied
    return applied
  }

  /** The gateway process may be restarting. */
  async #applyUntilDone(state: PolicyState, signal: AbortSignal): Promise<void> {
    const { clock, random, retry, logger } = this.#options
    const backoff = new Backoff({ ...retry, random })
    while (!signal.aborted) {
      try {
        await this.#setGateway(state)
        this.#applied = state
        logger.info({ policy: state }, 'policy state applied')
        return
      } catch (error) {
        logger.warn({ err: error }, 'the gateway did not apply the policy state; retrying')
        await pause(backoff.next(), signal, clock).catch(() => {})
      }
    }
  }

  /** The version is set while calls are held, so that no call is sent between the version and the pause or resume. */
  async #setGateway({ paused, version }: PolicyState): Promise<void> {
    const { gateway } = this.#options
    if (paused) await gateway.pause(0)
    if (version !== null) await gateway.setWeightVersion(String(version))
    if (!paused) await gateway.resume()
  }
}
