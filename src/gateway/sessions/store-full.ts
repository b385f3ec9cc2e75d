import { RolloutError } from '../../model/failure.ts'
import type { SessionLog } from '../../store/store.ts'

const RETRY_AFTER_SECONDS = 5

/** Whether nothing more of a session is recorded because the disk is full. */
export function isFull({ broken }: Pick<SessionLog, 'broken'>): boolean {
  return broken?.status === 503
}

/** In words that show a harness nothing of this machine. */
export function storeFull(): RolloutError {
  const message = 'The call cannot be recorded: the disk of the gateway is full.'
  return new RolloutError('store.unavailable', message, { status: 503, retryAfterSeconds: RETRY_AFTER_SECONDS })
}
