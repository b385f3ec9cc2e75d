import type { Answer } from '../../api/route.ts'
import type { Routes } from '../../api/routes/index.ts'
import { toHangingText, toVisibleLine } from '../../lib/visible-text.ts'
import { isTerminal } from '../../model/session.ts'
import { formatTable } from './table.ts'

export type TaskSummary = Answer<Routes['listTasks']>['tasks'][number]
export type SessionSummary = Answer<Routes['listTaskSessions']>['sessions'][number]
type SessionDetail = Answer<Routes['getSession']>

export function renderTasks(tasks: readonly TaskSummary[], now: number): string {
  if (tasks.length === 0) return 'No tasks.\n'
  return formatTable([
    ['task', 'status', 'harness', 'done', 'failed', 'mean reward', 'submitted'],
    ...tasks.map((task) => [
      task.task_id,
      task.status,
      task.harness ?? '-',
      `${task.completed_sessions}/${task.num_samples}`,
      String(task.errored_sessions),
      formatReward(task.mean_reward),
      ago(now - task.created_at * 1000),
    ]),
  ])
}

export function renderTask(
  task: TaskSummary,
  sessions: readonly SessionSummary[],
  now: number,
  unrunnable: string | null = null,
): string {
  const facts: [string, string][] = [
    ['Task', task.task_id],
    ['Status', task.status],
    ['Harness', task.harness ?? '-'],
    ...(task.model === null ? [] : [['Model', task.model] as [string, string]]),
    ['Sessions', sessionCounts(task)],
    ['Mean reward', formatReward(task.mean_reward)],
    ['Submitted', `${ago(now - task.created_at * 1000)} ago`],
    ...(unrunnable === null ? [] : [['Waiting', unrunnable] as [string, string]]),
  ]
  const head = facts.map(([name, value]) => `${name.padEnd(12)} ${toVisibleLine(value)}\n`).join('')
  return sessions.length === 0 ? head : `${head}\n${renderSessions(sessions)}${renderFailures(sessions)}`
}

function sessionCounts(task: TaskSummary): string {
  const counts: [number, string][] = [
    [task.valid_sessions, 'valid'],
    [task.usable_sessions, 'trainable'],
    [task.errored_sessions, 'failed'],
    [task.cancelled_sessions, 'cancelled'],
    [task.refills, 'replaced'],
  ]
  const parts = counts.filter(([count]) => count > 0).map(([count, what]) => `${count} ${what}`)
  return [`${task.completed_sessions} of ${task.num_samples} done`, ...parts].join(', ')
}

function renderSessions(sessions: readonly SessionSummary[]): string {
  return formatTable([
    ['sample', 'session', 'status', 'attempt', 'node', 'reward', 'calls', 'tokens', 'failure'],
    ...sessions.map((session) => [
      String(session.sample),
      session.session_id,
      session.status,
      String(session.attempt),
      session.node_id ?? '-',
      formatReward(session.reward),
      soFar(session, 'calls'),
      soFar(session, 'tokens'),
      session.failure?.code ?? '',
    ]),
  ])
}

/** The last progress report of an ended session is incomplete, so it is not shown. */
function soFar({ status, progress }: SessionSummary, what: 'calls' | 'tokens'): string {
  return progress === null || isTerminal(status) ? '-' : String(progress[what])
}

/** Prints each failure code once, with the number of its sessions. */
function renderFailures(sessions: readonly SessionSummary[]): string {
  const failed = Map.groupBy(
    sessions.filter(({ failure }) => failure !== null),
    ({ failure }) => failure!.code,
  )
  const lines = [...failed].map(
    ([code, all]) => `${all.length} × ${code}: ${toVisibleLine(firstLine(all[0]!.failure!.message))}\n`,
  )
  return lines.length === 0 ? '' : `\n${lines.join('')}`
}

export function renderSession(session: SessionDetail): string {
  const facts: [string, string][] = [
    ['Session', session.session_id],
    ['Task', `${session.task_id}, sample ${session.sample}`],
    ['Status', session.status],
    ['Node', session.node_id ?? '-'],
    ['Reward', formatReward(session.reward)],
    ...(session.progress === null || isTerminal(session.status)
      ? []
      : [['So far', `${session.progress.calls} calls, ${session.progress.tokens} tokens`] as [string, string]]),
    ...(session.failure === null
      ? []
      : [['Failure', `${session.failure.code}: ${session.failure.message}`] as [string, string]]),
    ...Object.entries(session.timing).flatMap(([name, ms]): [string, string][] =>
      ms == null ? [] : [[name.replace(/_ms$/, ''), `${(ms / 1000).toFixed(2)} s`]],
    ),
  ]
  const width = Math.max(...facts.map(([name]) => name.length))
  const head = facts.map(([name, value]) => `${name.padEnd(width)}  ${toHangingText(value, width + 2)}\n`).join('')
  if (session.attempts.length === 0) return head
  const rows = session.attempts.map((attempt) => [
    String(attempt.attempt),
    attempt.node_id ?? '-',
    attempt.ending ?? 'running',
    attempt.leased_at === null || attempt.ended_at === null
      ? '-'
      : `${(attempt.ended_at - attempt.leased_at).toFixed(1)} s`,
    attempt.failure === null ? '' : `${attempt.failure.code}: ${firstLine(attempt.failure.message)}`,
  ])
  return `${head}\n${formatTable([['attempt', 'node', 'ending', 'took', 'failure'], ...rows])}`
}

export function formatReward(reward: number | null): string {
  return reward === null ? '-' : reward.toFixed(3)
}

function firstLine(text: string): string {
  return text.split('\n')[0] ?? ''
}

/** Formats a duration as `3 min`. */
function ago(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000))
  if (seconds < 60) return `${seconds} s`
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h`
  return `${Math.floor(seconds / 86_400)} d`
}
