import { RolloutError } from '../../model/failure.ts'

/** A result file of this node is missing or damaged; the server did not cause the error. */
export class BrokenResult extends Error {
  override readonly name = 'BrokenResult'
}

/**
 * What a failed request means. `unavailable`: the server cannot answer now, and other requests would fail as well; retry
 * later. `retry`: the same, but the cause may be this request alone. `stale`: the server says that the attempt is no longer
 * leased to this node. `not-found`: the same, or a proxy answered that knows no sessions. `rejected`: the server will never
 * accept this content.
 */
export type ServerErrorKind = 'unavailable' | 'retry' | 'stale' | 'not-found' | 'rejected'

export function classifyServerError(error: unknown): ServerErrorKind {
  if (error instanceof BrokenResult) return 'rejected'
  if (!(error instanceof RolloutError)) return 'retry'
  const { status } = error.failure
  if (error.code === 'request.stale') return 'stale'
  if (error.boundary === 'server' || status > 500 || isForbidden(error) || status === 429) return 'unavailable'
  // On a conflict the uploaded file does not match the completion; a new upload resolves it.
  if (status === 500 || error.code === 'request.conflict') return 'retry'
  return status === 404 ? 'not-found' : 'rejected'
}

/** Retried like an unavailable server: an operator may correct the token. */
export function isForbidden(error: unknown): boolean {
  return error instanceof RolloutError && (error.failure.status === 401 || error.failure.status === 403)
}
