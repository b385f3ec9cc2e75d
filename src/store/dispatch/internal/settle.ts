import { sql, type Transaction } from 'kysely'
import type { Failure } from '../../../model/failure.ts'
import { judgeEnding, type Verdict } from '../../../model/refill.ts'
import type { SessionStatus, SessionTiming } from '../../../model/session.ts'
import type { Sql } from '../../database.ts'
import type { Tables, TaskWord } from '../../database/tables.ts'
import type { ArtifactReference, Lease, ResultReference } from '../port.ts'
import { closeRest, earlyStop, endTask } from './close-task.ts'
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
  /** Rows that were made of it, and the calls it made. */
  traces?: number
  completions?: number
  result?: ResultReference
  artifacts?: readonly ArtifactReference[]
}

export interface Settled {
  taskId: string
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
  endings: number
  early_stop: number | null
  max_failures: number
  /** Its owner has a limit on what runs: that there is one less may be news for nodes that wait. */
  is_limited: boolean
}

interface LockedSession {
  id: string
  task_id: string
  state: 'queued' | 'leased' | 'resting' | 'ended'
  status: string
  attempt: number
  failures: number
  beat: number
  node_id: string | null
  leased_at: number | null
}

/**
 * Ends attempts, in one transaction, with everything that follows from it; undefined for those that are not the holder's
 * any more. First the rows of their tasks are locked, so that all that ends anything of a task happens one after the
 * other, and of their sessions; only then is anything decided, and all of it is written at once.
 *
 * Nobody can wait for us for ever: tasks are locked in the order of their ids, whoever else locks one holds no other, and
 * what gives sessions to nodes, renews and releases them never waits.
 */
export function settle(
  db: Sql,
  endings: readonly AttemptEnding[],
  { now, isRestful }: { now: number; isRestful: boolean },
): Promise<(Settled | undefined)[]> {
  return db.transaction().execute(async (tx) => {
    const { tasks, sessions } = await lockBoth(tx, endings)
    const decided: Decision[] = []
    const answers = endings.map((ending) => {
      const session = sessions.get(ending.sessionId)
      const task = tasks.get(session?.task_id ?? '')
      if (session === undefined || task?.status !== 'running' || !isHolder(ending, session)) return undefined
      const decision = decide(ending, session, task, isRestful)
      decided.push(decision)
      return { taskId: task.id, isRefilled: decision.verdict === 'refill', taskStatus: task.status }
    })
    await writeDecisions(tx, decided, now)
    for (const task of tasks.values()) if (decided.some((each) => each.task === task)) await endIfOver(tx, task, now)
    return answers
  })
}

/**
 * `of t, s`: of each pair the task is locked first, as everywhere. A row that somebody else has just changed is read again
 * once it is locked, so all of them are as they are now.
 */
async function lockBoth(
  tx: Transaction<Tables>,
  endings: readonly AttemptEnding[],
): Promise<{ tasks: Map<string, LockedTask>; sessions: Map<string, LockedSession> }> {
  const ids = JSON.stringify(endings.map(({ sessionId }) => sessionId))
  const { rows } = await sql<LockedTask & LockedSession & { session_id: string; task_status: TaskWord }>`
    select t.id, t.status as task_status, t.need, t.ended, t.valid, t.usable, t.endings, t.early_stop, t.max_failures,
      exists(select 1 from quotas where quotas.owner = t.owner and max_running is not null) as is_limited,
      s.id as session_id, s.task_id, s.state, s.status, s.attempt, s.failures, s.beat, s.node_id, s.leased_at
    from sessions s join tasks t on t.id = s.task_id
    where s.id = any(array(select json_array_elements_text(${ids}::json)))
    order by t.id, s.id for no key update of t, s
  `.execute(tx)
  const tasks = new Map<string, LockedTask>()
  const sessions = new Map<string, LockedSession>()
  for (const row of rows) {
    sessions.set(row.session_id, { ...row, id: row.session_id })
    if (!tasks.has(row.id)) tasks.set(row.id, { ...row, status: row.task_status })
  }
  return { tasks, sessions }
}

function isHolder({ attempt, nodeId, beat }: AttemptEnding, session: LockedSession): boolean {
  if (session.state !== 'leased' || session.attempt !== attempt) return false
  return (nodeId ?? session.node_id) === session.node_id && (beat ?? session.beat) === session.beat
}

export interface Decision {
  ending: AttemptEnding
  verdict: Verdict
  isUsable: boolean
  /** If it is made again: not at once. */
  isResting: boolean
  /** If it is over: the how many-th ending of its task that is. */
  place?: number
  task: LockedTask
  /** As it was before. */
  session: Readonly<LockedSession>
}

/** Also brings the two up to date, for those that are decided after. */
function decide(ending: AttemptEnding, session: LockedSession, task: LockedTask, isRestful: boolean): Decision {
  const refillsLeft = task.max_failures - session.failures - 1
  const verdict = judgeEnding(ending, { refillsLeft, mayChangeMachine: true })
  const isUsable = verdict === 'valid' && ending.isTrainable
  const isResting = verdict === 'refill' && isRestful && ending.kind !== 'lost'
  const decision: Decision = { ending, verdict, isUsable, isResting, task, session: { ...session } }
  session.state = verdict === 'refill' ? 'queued' : 'ended'
  if (verdict === 'refill') return decision
  task.ended += 1
  task.endings += 1
  if (verdict === 'valid') task.valid += 1
  if (isUsable) task.usable += 1
  const isEnough = task.early_stop !== null && task.usable >= task.early_stop
  if (task.ended === task.need || isEnough) task.status = task.valid > 0 ? 'completed' : 'failed'
  return { ...decision, place: task.endings }
}

/** What the task still had to do is stopped. */
async function endIfOver(tx: Transaction<Tables>, task: LockedTask, now: number): Promise<void> {
  if (task.status === 'running') return
  if (task.ended < task.need) await closeRest(tx, task.id, earlyStop(task.usable), now)
  await endTask(tx, task.id, task.status, now)
}
