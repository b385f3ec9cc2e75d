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
import { writeResult } from './session-result.ts'

/** A session that an earlier process left, and what becomes of it. */
export type Recovered =
  /** Nothing had been captured: it is made again. */
  | { next: 'again'; order: SessionOrder }
  | { next: 'ended'; order: SessionOrder; outcome: SessionOutcome }
  /** Nothing had been captured, and whoever ordered it decides what becomes of it. */
  | { next: 'forgotten'; order: SessionOrder }

type Deps = Pick<NodeOptions, 'dir' | 'nodeId' | 'builds' | 'clock' | 'logger' | 'recovery'>

/** States in which the agent has not run yet. */
const BEFORE: ReadonlySet<SessionStatus> = new Set(['REGISTERED', 'INITIALIZING', 'READY'])

/**
 * What becomes of a session whose node died. Its sandbox is gone, and with it what could be graded: so one with captured
 * calls ends with those, and without a reward unless it had been graded before. One without is made again, if that is
 * ours to decide. Undefined for a folder that cannot be read, which is left as it is.
 */
export async function recoverSession(folder: SessionFolder, deps: Deps): Promise<Recovered | undefined> {
  try {
    const order = await folder.readOrder()
    const journal = await folder.readJournal()
    const reached = journal.findLast(({ attempt }) => attempt === order.attempt)?.to ?? 'REGISTERED'
    await using found = await loadIfThere(order.sessionId, deps)
    const hasCalls = found.tooLarge !== undefined || (found.loaded?.head.turnCount ?? 0) > 0
    if (deps.recovery === 'report' && !hasCalls && (await folder.readGrade()) === undefined) {
      await folder.setAside(pastFolder(deps.dir))
      return { next: 'forgotten', order }
    }
    if (BEFORE.has(reached) && !hasCalls) {
      // It was left open, and what is written to it now would never count as whole. There is nothing in it.
      const { log, lock, mark } = logPaths(dirname(folder.path), order.sessionId)
      for (const file of [log, lock, mark]) await rm(file, { force: true })
      return { next: 'again', order: { ...order, attempt: order.attempt + 1 } }
    }
    const built = await buildIfPossible(found, order)
    const outcome = toOutcome(order, { reached, ...built, grade: await folder.readGrade() }, deps)
    if (deps.recovery === 'report') {
      if (built.loaded === undefined) await writeResult(folder.result, { order, outcome })
      else await built.loaded.writeResult(folder.result, { order, outcome })
    }
    await folder.writeOutcome(outcome)
    return { next: 'ended', order, outcome }
  } catch (error) {
    deps.logger.error({ err: error, folder: folder.path }, 'a session of an earlier process cannot be recovered')
    return undefined
  }
}

function toOutcome(
  order: SessionOrder,
  { reached, facts, tooLarge, grade }: Build & { reached: SessionStatus; grade: StoredGrade | undefined },
  deps: Deps,
): SessionOutcome {
  return {
    schemaVersion: 1,
    sessionId: order.sessionId,
    taskId: order.task.task_id,
    ...(order.runId === undefined ? {} : { runId: order.runId }),
    attempt: order.attempt,
    nodeId: deps.nodeId,
    ...endingOf(reached, grade?.attempt === order.attempt ? grade : undefined),
    ...(tooLarge === undefined ? {} : { status: 'ERROR', failure: tooLarge }),
    ...(facts === undefined ? {} : { counts: toCounts(facts.summary) }),
    timing: {},
    artifacts: [],
    endedAt: deps.clock.now(),
  }
}

/** It had been graded, and only the end was not written any more; or it had not, and then it never will be. */
function endingOf(
  reached: SessionStatus,
  graded: StoredGrade | undefined,
): Pick<SessionOutcome, 'status' | 'failure' | 'ending' | 'grade'> {
  if (graded === undefined) {
    const message = `The node ended while the session was ${reached}; what was captured until then is kept.`
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
  return new RolloutError(code, 'As it was before the node ended.').failure
}

interface Found extends AsyncDisposable {
  /** Absent where nothing was ever captured. */
  loaded?: LoadedSession
  /** Why it cannot be loaded or built, ever. */
  tooLarge?: Failure
}

async function loadIfThere(sessionId: string, { builds }: Deps): Promise<Found> {
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
  /** Absent: nothing was captured, or it cannot be built. */
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

/** Throws all other errors: the session is left as it is, for somebody to look at. */
function toTooLarge(error: unknown): Failure {
  if (error instanceof RolloutError && error.code === 'session.too-large') return error.failure
  throw error
}
