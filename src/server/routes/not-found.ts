import { RolloutError } from '../../model/failure.ts'

export function noTask(taskId: string): RolloutError {
  return new RolloutError('request.not-found', `There is no task ${JSON.stringify(taskId)}; was it submitted here?`)
}

export function noSession(sessionId: string): RolloutError {
  return new RolloutError('request.not-found', `There is no session ${sessionId}.`)
}

export function noNode(nodeId: string): RolloutError {
  return new RolloutError('request.not-found', `There is no node ${nodeId}; it should join.`)
}
