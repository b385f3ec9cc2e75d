import { ENDED, type Facts, TERMINAL, type Violation, wasCancelled, wasRetried } from './facts.ts'
import type { FinalTask, TaskPlan } from './history.ts'

/** Every accepted task exists, has all its sessions, and has the expected final status. */
export function checkTasks(facts: Facts): Violation[] {
  const { plans, tasks, calls } = facts
  const lost = [...calls].flatMap(([taskId, own]) => {
    const isTaken = own.some(({ op, outcome }) => op === 'submit' && outcome === 'ok')
    if (!isTaken || tasks.has(taskId)) return []
    return [{ rule: 'task-lost', about: taskId, message: 'its submission was answered, and now nobody knows it' }]
  })
  const wrong = [...tasks.values()].flatMap((task) => {
    const plan = plans.get(task.taskId)
    if (plan === undefined) return [{ rule: 'task-invented', about: task.taskId, message: 'nobody submitted it' }]
    return [...checkSessions(task, plan), ...checkCounts(task), ...checkEnding(task, plan, facts)]
  })
  return [...lost, ...wrong]
}

function checkSessions({ taskId, sessions }: FinalTask, plan: TaskPlan): Violation[] {
  const samples = new Set(sessions.map(({ sample }) => sample))
  const ids = new Set(sessions.map(({ sessionId }) => sessionId))
  const found: Violation[] = []
  if (samples.size !== plan.samples || ids.size !== plan.samples || sessions.length !== plan.samples) {
    const message = `${plan.samples} sessions were asked for; there are ${sessions.length}, of ${samples.size} samples`
    found.push({ rule: 'session-lost', about: taskId, message })
  }
  for (const { sessionId, status } of sessions) {
    if (TERMINAL.has(status)) continue
    found.push({ rule: 'session-not-ended', about: sessionId, message: `it is still ${status}` })
  }
  return found
}

/** Compares the counts of a task with its sessions. */
function checkCounts({ taskId, inline, counts, sessions }: FinalTask): Violation[] {
  const ended = sessions.filter(({ status }) => TERMINAL.has(status)).length
  const cancelled = sessions.filter(({ status }) => status === 'CANCELLED').length
  const completed = sessions.filter(({ status }) => status === 'COMPLETED').length
  const pairs: [string, number, number][] = [
    ['total_sessions', inline.total, sessions.length],
    ['completed_sessions', inline.completed, ended],
    ['num_samples', counts.samples, sessions.length],
    ['completed_sessions of the list', counts.completed, ended],
    ['cancelled_sessions', counts.cancelled, cancelled],
    ['valid, failed and cancelled together', counts.valid + counts.errored + counts.cancelled, ended],
  ]
  const found = pairs.flatMap(([what, said, real]) =>
    said === real ? [] : [{ rule: 'counters-disagree', about: taskId, message: `${what} is ${said}, not ${real}` }],
  )
  if (counts.usable > counts.valid || counts.valid < completed) {
    const message = `${counts.usable} usable of ${counts.valid} valid sessions, with ${completed} completed`
    found.push({ rule: 'counters-disagree', about: taskId, message })
  }
  return found
}

function checkEnding({ taskId, inline, sessions, counts }: FinalTask, plan: TaskPlan, facts: Facts): Violation[] {
  const { status } = inline
  if (!ENDED.has(status)) return [{ rule: 'task-not-ended', about: taskId, message: `it is still ${status}` }]
  const found: Violation[] = []
  const mayBeCancelled = wasCancelled(facts, taskId)
  const isEarly = plan.earlyStop !== undefined && counts.usable >= plan.earlyStop
  const cancelled = sessions.filter((session) => session.status === 'CANCELLED')
  if (status === 'cancelled' && !mayBeCancelled) {
    found.push({ rule: 'wrong-ending', about: taskId, message: 'it is cancelled, and nobody asked for that' })
  }
  if (cancelled.length > 0 && !mayBeCancelled && !isEarly) {
    const message = `${cancelled.length} of its sessions are cancelled, and nobody asked for that`
    found.push({ rule: 'ended-too-early', about: taskId, message })
  }
  const hasValid = counts.valid > 0
  if ((status === 'completed' && !hasValid) || (status === 'failed' && hasValid)) {
    found.push({ rule: 'wrong-ending', about: taskId, message: `it is ${status} with ${counts.valid} valid sessions` })
  }
  const told = (facts.calls.get(taskId) ?? []).find(({ op, view }) => op === 'cancel' && view?.status === 'cancelled')
  if (told !== undefined && status !== 'cancelled' && !wasRetried(facts, taskId)) {
    found.push({ rule: 'wrong-ending', about: taskId, message: `it was said to be cancelled, and is ${status}` })
  }
  return found
}
