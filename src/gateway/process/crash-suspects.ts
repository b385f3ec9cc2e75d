/** Evidence on whether a session kills its gateway process. */
export interface CrashRecord {
  /** Whether the session has calls in flight. */
  isBusy: boolean
  /** Deaths of its process in a row during calls of this session. */
  crashes: number
}

/**
 * Counts a death of the process that serves these sessions, and returns the sessions to reject: the only session with
 * calls in flight at each of the last `limit` deaths. While several sessions had calls in flight each time, none is rejected
 * before twice the limit; then all of them are, because the process serves no session any more.
 */
export function countCrash<T extends CrashRecord>(sessions: readonly T[], limit: number): T[] {
  for (const session of sessions) {
    session.crashes = session.isBusy ? session.crashes + 1 : 0
    session.isBusy = false
  }
  const suspects = sessions.filter(({ crashes }) => crashes >= limit)
  if (suspects.length === 1) return suspects
  return suspects.filter(({ crashes }) => crashes >= 2 * limit)
}
