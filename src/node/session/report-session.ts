import { RolloutError, toFailure } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { toCounts } from '../build/build-counts.ts'
import type { LoadedSession } from '../build/session-build.ts'
import type { SessionEnd } from './run-session.ts'
import type { SessionBuild } from './built-session.ts'
import type { SessionFolder } from './session-folder.ts'
import { writeResult } from './session-result.ts'

export interface ReportOptions extends Pick<
  SessionOutcome,
  'nodeId' | 'timing' | 'warnings' | 'artifacts' | 'endedAt'
> {
  folder: SessionFolder
  /** Whether to write a result file, for delivery to a server. */
  writesResult: boolean
  onError: (error: unknown) => void
}

/** Stores the result and the outcome of a session in its folder. Rejects only if the outcome cannot be written. */
export async function reportSession(
  order: SessionOrder,
  { status, failure, ending, grade, built, timing }: SessionEnd<SessionBuild>,
  options: ReportOptions,
): Promise<SessionOutcome> {
  const { folder, writesResult, onError, ...fields } = options
  const counts = built && toCounts(built.facts.summary)
  let outcome = toOutcome(order, { status, failure, ending, grade, counts, ...fields })
  try {
    if (writesResult) await writeResultFile(folder, built?.loaded, { order, outcome })
  } catch (error) {
    onError(error)
    const cause = toFailure(error)
    if (cause.code === 'session.too-large' && built !== undefined) {
      // The agent made too many calls to write: the session keeps its reward, without samples.
      return reportSession(order, { status: 'ERROR', failure: cause, ending, grade, timing }, options)
    }
    outcome = withoutResult(outcome, error)
  }
  await folder.writeOutcome(outcome)
  return outcome
}

export function toOutcome(
  { sessionId, attempt, task, runId }: SessionOrder,
  fields: Omit<SessionOutcome, 'schemaVersion' | 'sessionId' | 'taskId' | 'runId' | 'attempt'>,
): SessionOutcome {
  return { schemaVersion: 1, sessionId, taskId: task.task_id, runId, attempt, ...fields }
}

export async function writeResultFile(
  folder: SessionFolder,
  loaded: LoadedSession | undefined,
  parts: { order: SessionOrder; outcome: SessionOutcome },
): Promise<void> {
  if (loaded === undefined) await writeResult(folder.result, parts)
  else await loaded.writeResult(folder.result, parts)
}

/** The outcome of a session whose result is lost: a failure of storage, so that the server may refill the session. */
export function withoutResult(outcome: SessionOutcome, error: unknown): SessionOutcome {
  const { ending: _, grade: __, counts: ___, failure: ____, ...rest } = outcome
  const cause = toFailure(error)
  const message = `The session ended ${outcome.status}, but its result could not be stored or delivered: ${cause.message}`
  return { ...rest, status: 'ERROR', failure: new RolloutError('store.unavailable', message).failure, artifacts: [] }
}
