import { rm } from 'node:fs/promises'
import { dirname } from 'node:path'
import { RolloutError, type Failure } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionStatus } from '../../model/session.ts'
import { logPaths } from '../../store/call-log/log-path.ts'
import type { BuildFacts, LoadedSession } from '../build/session-build.ts'
import { pastFolder, type SessionFolder, type StoredGrade } from './session-folder.ts'
import { toCounts } from '../build/build-counts.ts'
import type { NodeOptions } from '../node.ts'
import { toOutcome, writeResultFile } from './report-session.ts'

/** An unfinished session of an earlier process, and what the node does with it. */
export type Recovered =
  /** The session has no captured calls and starts again. */
  | { next: 'again'; order: SessionOrder }
  | { next: 'ended'; order: SessionOrder; outcome: SessionOutcome }
  /** The session has no captured calls, and the server decides about it. */
  | { next: 'forgotten'; order: SessionOrder }

type Deps = Pick<NodeOptions, 'dir' | 'nodeId' | 'builds' | 'clock' | 'logger' | 'recovery'>

/** States in which the harness has not run. */
const BEFORE_RUN: ReadonlySet<SessionStatus> = new Set(['REGISTERED', 'INITIALIZING', 'READY'])

/**
 * Recovers a session whose node process died. The sandbox is lost, so the session can no longer be graded: a session with
 * captured calls ends with them, and has a reward only if it was graded before. A session without captured calls starts
 * again, unless the server decides. Undefined if the folder cannot be read; the folder is then left unchanged.
 */
export async function recoverSession(folder: SessionFolder, deps: Deps): Promise<Recovered | undefined> {
  try {
    const order = await folder.readOrder()
    const journal = await folder.readJournal()
    const reached = journal.findLast(({ attempt }) => attempt === order.attempt)?.to ?? 'REGISTERED'
    await using found = await loadIfRecorded(order.sessionId, deps)
    const hasCalls = found.tooLarge !== undefined || (found.loaded?.head.turnCount ?? 0) > 0
    if (deps.recovery === 'report' && !hasCalls && (await folder.readGrade()) === undefined) {
      await folder.archive(pastFolder(deps.dir))
      return { next: 'forgotten', order }
    }
    if (BEFORE_RUN.has(reached) && !hasCalls) {
      // The empty call log was not closed, so calls appended to it now would count as incomplete.
      const { log, lock, mark } = logPaths(dirname(folder.path), order.sessionId)
      for (const file of [log, lock, mark]) await rm(file, { force: true })
      return { next: 'again', order: { ...order, attempt: order.attempt + 1 } }
    }
    const built = await buildIfPossible(found, order)
    const grade = await folder.readGrade()
    const outcome = toOutcome(order, {
      nodeId: deps.nodeId,
      ...endingOf(reached, grade?.attempt === order.attempt ? grade : undefined),
      ...(built.tooLarge && { status: 'ERROR', failure: built.tooLarge }),
      counts: built.facts && toCounts(built.facts.summary),
      timing: {},
      artifacts: [],
      endedAt: deps.clock.now(),
    })
    if (deps.recovery === 'report') await writeResultFile(folder, built.loaded, { order, outcome })
    await folder.writeOutcome(outcome)
    return { next: 'ended', order, outcome }
  } catch (error) {
    deps.logger.error({ err: error, folder: folder.path }, 'a session of an earlier process could not be recovered')
    return undefined
  }
}

/** The ending of a session that was graded before its node process died; otherwise the failure `session.node-lost`. */
function endingOf(
  reached: SessionStatus,
  graded: StoredGrade | undefined,
): Pick<SessionOutcome, 'status' | 'failure' | 'ending' | 'grade'> {
  if (graded === undefined) {
    const message = `The node process ended while the session was ${reached}; the calls captured until then are kept.`
    return { status: 'ERROR', failure: new RolloutError('session.node-lost', message).failure }
  }
  const { ending, grade } = graded
  switch (ending.kind) {
    case 'completed':
    case 'truncated':
      return { status: 'COMPLETED', ending, grade }
    case 'timeout':
      return { status: 'TIMEOUT', failure: failureOf('session.agent-timeout'), ending, grade }
    case 'failed':
      return { status: 'ERROR', failure: failureOf('harness.exit-nonzero'), ending, grade }
  }
}

function failureOf(code: 'session.agent-timeout' | 'harness.exit-nonzero'): Failure {
  return new RolloutError(code, 'The session had ended so before the node process ended.').failure
}

interface Found extends AsyncDisposable {
  /** Absent if no call was recorded. */
  loaded?: LoadedSession
  /** Why the session can never be loaded or built. */
  tooLarge?: Failure
}

async function loadIfRecorded(sessionId: string, { builds }: Deps): Promise<Found> {
  try {
    const loaded = await builds.load(sessionId)
    return { loaded, [Symbol.asyncDispose]: () => loaded[Symbol.asyncDispose]() }
  } catch (error) {
    const nothing = { async [Symbol.asyncDispose]() {} }
    if (error instanceof RolloutError && error.code === 'store.unavailable') return nothing
    return { tooLarge: toTooLarge(error), ...nothing }
  }
}

interface Build extends Pick<Found, 'loaded' | 'tooLarge'> {
  /** Absent: no calls were captured, or they cannot be built. */
  facts?: BuildFacts
}

async function buildIfPossible({ loaded, tooLarge }: Found, { task }: SessionOrder): Promise<Build> {
  if (loaded === undefined) return { tooLarge }
  try {
    return { loaded, facts: await loaded.build({ builder: task.builder, training: task.training, toolPrefixes: [] }) }
  } catch (error) {
    return { tooLarge: toTooLarge(error) }
  }
}

/** Throws all other errors again: the folder is then left unchanged, for inspection. */
function toTooLarge(error: unknown): Failure {
  if (error instanceof RolloutError && error.code === 'session.too-large') return error.failure
  throw error
}
