import type { History } from './history.ts'

/** End of each phase of a run. */
export interface RunTimes {
  begin: number
  up: number
  healed: number
  settled: number
  drained: number
  checked: number
}

/** Returns counts and durations, for people. */
export function summarize({ entries, final }: History, times: RunTimes): Record<string, unknown> {
  return {
    seconds: {
      start: toSeconds(times.up - times.begin),
      torment: toSeconds(times.healed - times.up),
      settle: toSeconds(times.settled - times.healed),
      drain: toSeconds(times.drained - times.settled),
      check: toSeconds(times.checked - times.drained),
    },
    entries: count(entries.map(({ kind }) => kind)),
    calls: count(entries.flatMap((entry) => (entry.kind === 'call' ? [`${entry.op} ${entry.outcome}`] : []))),
    reports: count(entries.flatMap((entry) => (entry.kind === 'report' ? [`${entry.origin} ${entry.answer}`] : []))),
    tasks: count(final.tasks.map(({ inline }) => inline.status)),
    sessions: count(final.tasks.flatMap(({ sessions }) => sessions.map(({ status }) => status))),
    attempts: count(final.database.attempts.map(({ ending }) => ending)),
    events: final.events.replayed.length,
  }
}

function count(values: readonly string[]): Record<string, number> {
  return Object.fromEntries([...Map.groupBy(values, (value) => value)].map(([value, all]) => [value, all.length]))
}

function toSeconds(ms: number): number {
  return Math.round(ms / 100) / 10
}
