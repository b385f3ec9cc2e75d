import { jitteredDelay } from '../../lib/async/jittered-delay.ts'
import type { CallbackEnd } from '../../store/dispatch/port.ts'
import type { Delivery } from './deliver.ts'

/** A refused callback is retried only in case an operator fixes the cause. */
const TRIES_WHEN_REFUSED = 3
const FIRST_DELAY_MS = 1000
export const MAX_DELAY_MS = 10 * 60_000
/** Limit on `retry-after`. Less than the delay that `claimCallbacks` treats as a clock that was set back. */
const MAX_RETRY_AFTER_MS = 25 * 60_000

/** `tries` includes the current try. */
export function endOf(
  delivery: Delivery,
  { tries, attempts }: { tries: number; attempts: number },
  now: number,
  random: number,
): CallbackEnd {
  if (delivery.kind === 'delivered') return { kind: 'delivered' }
  const maxTries = delivery.kind === 'refused' ? Math.min(TRIES_WHEN_REFUSED, attempts) : attempts
  if (tries >= maxTries) return { kind: 'dead', error: delivery.error }
  const retryAfterMs = delivery.kind === 'failed' ? Math.min(delivery.retryAfterMs ?? 0, MAX_RETRY_AFTER_MS) : 0
  return { kind: 'again', at: now + Math.max(retryAfterMs, backoffMs(tries, random)), error: delivery.error }
}

export function backoffMs(tries: number, random: number): number {
  return jitteredDelay(tries, { baseMs: FIRST_DELAY_MS, maxMs: MAX_DELAY_MS }, random)
}
