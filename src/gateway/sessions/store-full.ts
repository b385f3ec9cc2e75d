import { RolloutError } from '../../model/failure.ts'
import type { SessionLog } from '../../store/store.ts'

const RETRY_AFTER_SECONDS = 5

/** Whether a session is no longer recorded because the disk is full. */
export function isFull({ broken }: Pick<SessionLog, 'broken'>): boolean {
  return broken?.status === 503
}

/** The message is for harnesses, so it contains no details of this machine. */
export function storeFull(): RolloutError {
  const message = 'The call cannot be recorded: the disk of the gateway is full.'
  return new RolloutError('store.unavailable', message, { status: 503, retryAfterSeconds: RETRY_AFTER_SECONDS })
}
