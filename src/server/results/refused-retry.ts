import { RolloutError } from '../../model/failure.ts'
import { noSession, noTask } from '../routes/not-found.ts'

type RetryRefusal = 'stale' | 'over-quota' | 'enough' | 'under-way' | 'stands' | 'unknown-session' | 'unknown-task'

/** Why something cannot be made again. */
export function refusedRetry(kind: RetryRefusal, id: string): RolloutError {
  const name = JSON.stringify(id)
  switch (kind) {
    case 'unknown-session':
      return noSession(id)
    case 'unknown-task':
      return noTask(id)
    case 'stale':
      return new RolloutError('request.stale', `${name} was made for a version of the policy that is too old by now.`)
    case 'over-quota':
      return overQuota()
    case 'enough':
      return new RolloutError('request.conflict', `The task of ${name} has as many usable sessions as it asked for.`)
    case 'under-way':
      return new RolloutError('request.conflict', `Session ${id} is under way.`)
    case 'stands':
      return new RolloutError(
        'request.conflict',
        `Session ${id} ended by the policy’s own doing, and its result stands.`,
      )
  }
}

export function overQuota(): RolloutError {
  const message = 'This token would have more sessions queued than it may have; wait until some are done.'
  return new RolloutError('request.over-quota', message, { retryAfterSeconds: 5 })
}
