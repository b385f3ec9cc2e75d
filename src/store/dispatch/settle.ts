import { sql, type Transaction } from 'kysely'
import { type Failure, failureClasses, RolloutError } from '../../model/failure.ts'
import type { SessionStatus, SessionTiming } from '../../model/session.ts'
import type { Sql } from '../database.ts'
import type { Tables, TaskWord } from '../database/tables.ts'
import type { Lease, ResultReference } from '../dispatch.ts'
import { closeRest, endTask } from './close-task.ts'
import { writeDecisions } from './write-decisions.ts'

/** How an attempt came to its end. */
export interface AttemptEnding extends Lease {
  kind: 'accepted' | 'lost'
  /** Only if it is this node's. */
  nodeId?: string
  /** Only if it was not renewed since. */
  beat?: number
  status: SessionStatus
  failure?: Failure
  reward?: number
  timing?: SessionTiming
  /** Something of it can be trained on. */
  isTrainable: boolean
  result?: ResultReference
}

export interface Settled {
  isRefilled: boolean
  taskStatus: TaskWord
}

/** As they are now, and kept so through the transaction. */
interface LockedTask {
  id: string
  status: TaskWord
  need: number
  ended: number
  valid: number
  usable: number
  early_stop: number | null
  max_failures: number
}

interface LockedSession {
  id: string
  task_id: string
  state: 'queued' | 'leased' | 'ended'
  attempt: number
  failures: number
  beat: number
  node_id: string | null
  leased_at: number | null
}

/**
 * Ends attempts, in one transaction, with everything that follows from it; undefined for those that are not the holder's
 * any more. First the rows of their tasks are locked, so that all that ends anything of a task happens one after the
 * other, then those of the sessions; only then is anything decided, and all of it is written at once.
 *
 * Nobody can wait for us for ever: tasks are locked in the order of their ids, whoever else locks one holds nothing yet,
 * and what gives sessions to nodes, renews and releases them never waits.
 */
export function settle(db: Sql, endings: readonly AttemptEnding[], now: number): Promise<(Settled | undefined)[]> {
  return db.transaction().execute(async (tx) => {
    const ids = JSON.stringify(endings.map(({ sessionId }) => sessionId))
    const tasks = await lockTasks(tx, ids)
    const sessions = await lockSessions(tx, ids)
    const decided: Decision[] = []
    const answers = endings.map((ending) => {
      const session = sessions.get(ending.sessionId)
      const task = tasks.get(session?.task_id ?? '')
      if (session === undefined || task?.status !== 'running' || !isHolder(ending, session)) return undefined
      const decision = decide(ending, session, task)
      decided.push(decision)
      return { isRefilled: decision.verdict === 'refill', taskStatus: task.status }
    })
    await writeDecisions(tx, decided, now)
    for (const task of tasks.values()) if (decided.some((each) => each.task === task)) await endIfOver(tx, task, now)
    return answers
  })
}

/** The node fell silent. Whether that was so; false when it is not the holder's any more, or was renewed meanwhile. */
export async function loseSession(db: Sql, lost: Lease & { beat?: number }, now: number): Promise<boolean> {
  const message = 'The node fell silent while the session was under way; see the log of that node.'
  const { failure } = new RolloutError('session.node-lost', message)
  const ending: AttemptEnding = { ...lost, kind: 'lost', status: 'ERROR', failure, isTrainable: false }
  const [settled] = await settle(db, [ending], now)
  return settled !== undefined
}

async function lockTasks(tx: Transaction<Tables>, sessionIds: string): Promise<Map<string, LockedTask>> {
  const { rows } = await sql<LockedTask>`
    select id, status, need, ended, valid, usable, early_stop, max_failures from tasks
    where id = any(array(
      select task_id from sessions where id = any(array(select json_array_elements_text(${sessionIds}::json)))
    ))
    order by id for no key update
  `.execute(tx)
  return new Map(rows.map((row) => [row.id, row]))
}

async function lockSessions(tx: Transaction<Tables>, sessionIds: string): Promise<Map<string, LockedSession>> {
  const { rows } = await sql<LockedSession>`
    select id, task_id, state, attempt, failures, beat, node_id, leased_at from sessions
    where id = any(array(select json_array_elements_text(${sessionIds}::json))) for no key update
  `.execute(tx)
  return new Map(rows.map((row) => [row.id, row]))
}

function isHolder({ attempt, nodeId, beat }: AttemptEnding, session: LockedSession): boolean {
  if (session.state !== 'leased' || session.attempt !== attempt) return false
  return (nodeId ?? session.node_id) === session.node_id && (beat ?? session.beat) === session.beat
}

type Verdict = 'valid' | 'failed' | 'refill'

/** What infrastructure spoilt is made again until too much was; all else is over, well or not. */
function judge({ status, failure }: AttemptEnding, { failures }: LockedSession, { max_failures }: LockedTask): Verdict {
  if (failure === undefined) return status === 'COMPLETED' || status === 'TIMEOUT' ? 'valid' : 'failed'
  switch (failureClasses[failure.code].blame) {
    case 'policy':
      return 'valid'
    case 'caller':
      return 'failed'
    case 'infrastructure':
      return failures + 1 < max_failures ? 'refill' : 'failed'
  }
}

export interface Decision {
  ending: AttemptEnding
  verdict: Verdict
  isUsable: boolean
  task: LockedTask
  /** As it was before. */
  session: Readonly<LockedSession>
}

/** Also brings the two up to date, for those that are decided after. */
function decide(ending: AttemptEnding, session: LockedSession, task: LockedTask): Decision {
  const verdict = judge(ending, session, task)
  const isUsable = verdict === 'valid' && ending.isTrainable
  const decision = { ending, verdict, isUsable, task, session: { ...session } }
  session.state = verdict === 'refill' ? 'queued' : 'ended'
  if (verdict === 'refill') return decision
  task.ended += 1
  if (verdict === 'valid') task.valid += 1
  if (isUsable) task.usable += 1
  const isEnough = task.early_stop !== null && task.usable >= task.early_stop
  if (task.ended === task.need || isEnough) task.status = task.valid > 0 ? 'completed' : 'failed'
  return decision
}

/** What the task still had to do is stopped. */
async function endIfOver(tx: Transaction<Tables>, task: LockedTask, now: number): Promise<void> {
  if (task.status === 'running') return
  if (task.ended < task.need) {
    const why = `${task.usable} usable sessions are enough for this task; the others were stopped.`
    await closeRest(tx, task.id, why, now)
  }
  await endTask(tx, task.id, task.status, now)
}
