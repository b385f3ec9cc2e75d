import { RolloutError } from '../../model/failure.ts'
import type { NodeMembership } from '../../store/dispatch/port.ts'

export function noTask(taskId: string): RolloutError {
  return new RolloutError('request.not-found', `Task ${JSON.stringify(taskId)} does not exist on this server.`)
}

export function noSession(sessionId: string): RolloutError {
  return new RolloutError('request.not-found', `Session ${sessionId} does not exist.`)
}

export function noNode(nodeId: string): RolloutError {
  return new RolloutError('request.not-found', `Node ${nodeId} does not exist; it must join first.`)
}

export function assertMember(nodeId: string, membership: NodeMembership): void {
  switch (membership) {
    case 'member':
    case 'draining':
      return
    case 'unknown':
      throw noNode(nodeId)
    case 'replaced':
      throw replaced(nodeId)
  }
}

export function replaced(nodeId: string): RolloutError {
  const message = `Another process has joined as node ${nodeId}; stop this process, or give it another node id.`
  return new RolloutError('request.stale', message)
}

export function noUpload(uploadId: string): RolloutError {
  return new RolloutError('request.not-found', `Upload ${uploadId} does not exist; begin it first.`)
}

export function overQuota(): RolloutError {
  const message = 'The sessions of this request exceed the queue limit of this token; retry when sessions have ended.'
  return new RolloutError('request.over-quota', message, { retryAfterSeconds: 5 })
}

type RetryRefusal = 'stale' | 'over-quota' | 'enough' | 'under-way' | 'stands' | 'unknown-session' | 'unknown-task'

export function refusedRetry(kind: RetryRefusal, id: string): RolloutError {
  const name = JSON.stringify(id)
  switch (kind) {
    case 'unknown-session':
      return noSession(id)
    case 'unknown-task':
      return noTask(id)
    case 'stale':
      return new RolloutError('request.stale', `The policy version of ${name} is too old.`)
    case 'over-quota':
      return overQuota()
    case 'enough':
      return new RolloutError('request.conflict', `The task of ${name} already has enough usable sessions.`)
    case 'under-way':
      return new RolloutError('request.conflict', `Session ${id} has not ended.`)
    case 'stands':
      return new RolloutError('request.conflict', `The agent caused the end of session ${id}, so its result is final.`)
  }
}
