import { RolloutError } from '../../model/failure.ts'

/** A file of ours is not what it should be; no server is to blame for it. */
export class BrokenResult extends Error {
  override readonly name = 'BrokenResult'
}

/**
 * What a failed call means for the one thing that was to be done by it. `away`: nothing, and others will fare the same;
 * ask again later. `odd`: the same, but it may be this one thing. `stale`: the attempt is not ours any more, in the
 * server's own word for it. `unknown`: it may mean that, or come from something on the way that knows nothing of sessions.
 * `broken`: these bytes will never do.
 */
export type Trouble = 'away' | 'odd' | 'stale' | 'unknown' | 'broken'

export function troubleOf(error: unknown): Trouble {
  if (error instanceof BrokenResult) return 'broken'
  if (!(error instanceof RolloutError)) return 'odd'
  const { status } = error.failure
  if (error.code === 'request.stale') return 'stale'
  if (error.boundary === 'server' || status > 500 || isForbidden(error) || status === 429) return 'away'
  // What was uploaded is not what is completed with; sending it again sets that right.
  if (status === 500 || error.code === 'request.conflict') return 'odd'
  return status === 404 ? 'unknown' : 'broken'
}

/** Somebody sets a token right, sooner or later. */
export function isForbidden(error: unknown): boolean {
  return error instanceof RolloutError && (error.failure.status === 401 || error.failure.status === 403)
}
