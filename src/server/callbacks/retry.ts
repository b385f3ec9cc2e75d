import { jitteredDelay } from '../../lib/async/jittered-delay.ts'
import type { CallbackEnd } from '../../store/dispatch/commands/callbacks.ts'
import type { Delivery } from './deliver.ts'

/** What nobody expects to change is tried again only in case somebody repairs it. */
const TRIES_WHEN_REFUSED = 3
const FIRST_DELAY_MS = 1000
export const LONGEST_DELAY_MS = 10 * 60_000
/** However long the other side asks to wait. Less than what takes a clock for set back: see `takeCallbacks`. */
const LONGEST_ASKED_MS = 25 * 60_000

/** What to do after a try; `tries` counts it. */
export function endOf(
  delivery: Delivery,
  { tries, attempts }: { tries: number; attempts: number },
  now: number,
  random: number,
): CallbackEnd {
  if (delivery.kind === 'delivered') return { kind: 'delivered' }
  const most = delivery.kind === 'refused' ? Math.min(TRIES_WHEN_REFUSED, attempts) : attempts
  if (tries >= most) return { kind: 'dead', error: delivery.error }
  const asked = delivery.kind === 'failed' ? Math.min(delivery.retryAfterMs ?? 0, LONGEST_ASKED_MS) : 0
  return { kind: 'again', at: now + Math.max(asked, backoffMs(tries, random)), error: delivery.error }
}

export function backoffMs(tries: number, random: number): number {
  return jitteredDelay(tries, { baseMs: FIRST_DELAY_MS, maxMs: LONGEST_DELAY_MS }, random)
}
