import type { Selectable } from 'kysely'
import type { Failure } from '../../../model/failure.ts'
import { judgeEnding, type Verdict } from '../../../model/refill.ts'
import type { SessionStatus, SessionTiming } from '../../../model/session.ts'
import type { Tables } from '../../database/tables.ts'
import type { ArtifactReference, Lease, ResultReference } from '../types.ts'

/** The end of an attempt: a result was delivered, or the lease was lost. */
export interface AttemptEnding extends Lease {
  kind: 'accepted' | 'lost'
  /** Applies only if this node holds the lease. */
  nodeId?: string
  /** Applies only if the lease was not renewed since. */
  beat?: number
  status: SessionStatus
  failure?: Failure
  reward?: number
  timing?: SessionTiming
  isTrainable: boolean
  /** Number of training rows. */
  traces?: number
  /** Number of model calls. */
  completions?: number
  result?: ResultReference
  artifacts?: readonly ArtifactReference[]
}

/** A locked row: unchanged by others until the transaction ends. */
export interface LockedTask extends Pick<
  Selectable<Tables['tasks']>,
  'id' | 'status' | 'need' | 'ended' | 'valid' | 'usable' | 'endings' | 'early_stop' | 'max_failures'
> {
  /** The owner has a limit on running sessions, so the end of one may let a waiting node lease another. */
  is_limited: boolean
}

export type LockedSession = Pick<
  Selectable<Tables['sessions']>,
  'id' | 'task_id' | 'state' | 'status' | 'attempt' | 'failures' | 'beat' | 'node_id' | 'leased_at'
>

export interface Decision {
  ending: AttemptEnding
  verdict: Verdict
  isUsable: boolean
  /** With verdict `refill`: queued again after a delay. */
  isResting: boolean
  /** Position of this ending among the endings of the task, from 1; absent with verdict `refill`. */
  place?: number
  task: LockedTask
  /** The row before the decision. */
  session: Readonly<LockedSession>
}

export function isHolder({ attempt, nodeId, beat }: AttemptEnding, session: LockedSession): boolean {
  if (session.state !== 'leased' || session.attempt !== attempt) return false
  return (nodeId ?? session.node_id) === session.node_id && (beat ?? session.beat) === session.beat
}

/** Also updates `session` and `task`, which later decisions of the same transaction read. */
export function decide(
  ending: AttemptEnding,
  session: LockedSession,
  task: LockedTask,
  hasRetryDelay: boolean,
): Decision {
  const refillsLeft = task.max_failures - session.failures - 1
  const verdict = judgeEnding(ending, { refillsLeft, mayChangeMachine: true })
  const isUsable = verdict === 'valid' && ending.isTrainable
  const isResting = verdict === 'refill' && hasRetryDelay && ending.kind !== 'lost'
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
