import type { SessionOrigin } from '../../store/store.ts'
import type { SessionScore } from '../../trajectory/score-session.ts'
import { usageError } from '../command.ts'

/** Value of `--run` for sessions without a run id: recordings, and sessions of older versions. */
export const NO_RUN = 'none'

export interface RunChoice {
  ids: string[]
  /** `all`, `none`, or a run id. */
  run: string
  /** All runs of the folder, oldest first. */
  runs: string[]
}

export function runOf({ origin }: SessionOrigin): string {
  const { run } = origin
  return typeof run === 'string' ? run : NO_RUN
}

/** Returns the sessions of a run, or of all. Without a `wanted` run: of the newest, or the recordings if one of them is newer. */
export function chooseRun(command: string, sessions: readonly SessionOrigin[], wanted: string | undefined): RunChoice {
  // Run ids sort by time.
  const runs = [...new Set(sessions.map(runOf))].toSorted((a, b) =>
    a === NO_RUN ? -1 : b === NO_RUN ? 1 : a < b ? -1 : 1,
  )
  if (wanted === 'all') return { ids: sessions.map(({ id }) => id), run: 'all', runs }
  const newest = sessions.at(-1)
  const isRecording = newest === undefined || runOf(newest) === NO_RUN
  const run = wanted ?? (isRecording ? NO_RUN : (runs.at(-1) ?? NO_RUN))
  const ids = sessions.filter((session) => runOf(session) === run).map(({ id }) => id)
  if (wanted !== undefined && ids.length === 0) {
    throw usageError(command, `--run ${wanted} has no session in the folder; use ${['all', ...runs].join(', ')}`)
  }
  return { ids, run, runs }
}

/** Names a group so that sessions of the same task in another run belong to another group. */
export function groupOf(runId: string, group: string): string {
  return group.startsWith(`${runId}/`) ? group : `${runId}/${group}`
}

/**
 * Returns the scores that sessions of `run` are compared with: scores of the same run, and of sessions outside the folder.
 * With `all` every group is split by run.
 */
export function scoresOfRun(
  scores: ReadonlyMap<string, SessionScore>,
  sessions: readonly SessionOrigin[],
  run: string,
): Map<string, SessionScore> {
  const runs = new Map(sessions.map((session) => [session.id, runOf(session)]))
  const chosen = [...scores].filter(([id]) => run === 'all' || (runs.get(id) ?? run) === run)
  return new Map(
    chosen.map(([id, score]) => {
      const own = runs.get(id) ?? NO_RUN
      if (run !== 'all' || own === NO_RUN || score.group_id == null) return [id, score]
      return [id, { ...score, group_id: groupOf(own, score.group_id) }]
    }),
  )
}
