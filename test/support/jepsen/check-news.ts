import { ENDED, type Facts, mayRetryWithin, TERMINAL, type Violation, wasRetried } from './facts.ts'
import type { Callback, FinalTask, SeenEvent } from './history.ts'

/** Checks the notifications of the server: events and callbacks. */
export function checkNotifications(facts: Facts): Violation[] {
  const { live, replayed } = facts.history.final.events
  return [
    ...checkStream('the listener', live, facts),
    ...checkStream('a new listener', replayed, facts),
    ...checkEndings(facts),
    ...checkCallbacks(facts),
  ]
}

/** A stream contains every event exactly once, in order. */
function checkStream(who: string, events: readonly SeenEvent[], { history }: Facts): Violation[] {
  const places = new Map(history.final.database.events.map((id, place) => [id, place]))
  const found: Violation[] = []
  const seen = new Set<string>()
  let last = -1
  for (const { id, type, sessionId, taskId } of events) {
    const about = sessionId ?? taskId ?? id
    const place = places.get(id)
    if (place === undefined) {
      found.push({ rule: 'event-invented', about, message: `${who} heard ${type} ${id}, which is not stored` })
    } else if (seen.has(id)) {
      found.push({ rule: 'event-doubled', about, message: `${who} heard ${type} ${id} twice` })
    } else if (place < last) {
      found.push({ rule: 'event-out-of-order', about, message: `${who} heard ${type} ${id} after a later one` })
    }
    seen.add(id)
    last = Math.max(last, place ?? -1)
  }
  const missing = history.final.database.events.filter((id) => !seen.has(id))
  if (missing.length > 0) {
    const message = `${who} did not hear ${missing.length} events, such as ${missing[0]}`
    found.push({ rule: 'event-missing', about: who, message })
  }
  return found
}

/** The events alone contain the final status of every task and session. */
function checkEndings({ history, tasks }: Facts): Violation[] {
  const events = history.final.events.replayed
  const found: Violation[] = []
  const ofTask = Map.groupBy(events, ({ taskId }) => taskId)
  const ofSession = Map.groupBy(events, ({ sessionId }) => sessionId)
  for (const { taskId, inline, sessions } of tasks.values()) {
    const created = ofTask.get(taskId)?.filter(({ type }) => type === 'task.created').length ?? 0
    if (created !== 1) found.push({ rule: 'event-missing', about: taskId, message: `it was created ${created} times` })
    const last = ofTask.get(taskId)?.findLast(({ type }) => type === 'task.completed')?.status
    if (last !== inline.status) {
      const message = `it was last said to be ${last ?? 'under way'}, and is ${inline.status}`
      found.push({ rule: 'event-missing', about: taskId, message })
    }
    for (const { sessionId, status } of sessions) {
      const told = ofSession.get(sessionId)?.findLast((event) => isEnd(event))
      if (told?.status === status) continue
      const message = `it was last said to be ${told?.status ?? 'under way'}, and is ${status}`
      found.push({ rule: 'event-missing', about: sessionId, message })
    }
  }
  return [...found, ...checkEndsOnce(ofTask, ofSession, history.final.tasks, history.entries.some(isRetry))]
}

/** Without retries, every task and session ends once. */
function checkEndsOnce(
  ofTask: ReadonlyMap<string | undefined, readonly SeenEvent[]>,
  ofSession: ReadonlyMap<string | undefined, readonly SeenEvent[]>,
  tasks: readonly FinalTask[],
  mayRetry: boolean,
): Violation[] {
  if (mayRetry) return []
  const found: Violation[] = []
  for (const { taskId, sessions } of tasks) {
    const ends = ofTask.get(taskId)?.filter(({ type }) => type === 'task.completed').length ?? 0
    if (ends > 1) found.push({ rule: 'event-doubled', about: taskId, message: `it was said to be over ${ends} times` })
    for (const { sessionId } of sessions) {
      const own = ofSession.get(sessionId)?.filter((event) => isEnd(event)).length ?? 0
      if (own <= 1) continue
      found.push({ rule: 'event-doubled', about: sessionId, message: `it was said to be over ${own} times` })
    }
  }
  return found
}

function isEnd({ type, status, isRefilled }: SeenEvent): boolean {
  return type === 'session.state_changed' && TERMINAL.has(status ?? '') && isRefilled !== true
}

function isRetry(entry: { kind: string; op?: string }): boolean {
  return entry.kind === 'call' && entry.op === 'retry'
}

function checkCallbacks(facts: Facts): Violation[] {
  const found: Violation[] = []
  for (const [taskId, own] of facts.callbacks) {
    if (facts.plans.get(taskId)?.wantsCallback === true) continue
    found.push({ rule: 'callback-unasked', about: taskId, message: `${own.length} callbacks came that nobody wanted` })
  }
  for (const task of facts.tasks.values()) {
    if (facts.plans.get(task.taskId)?.wantsCallback !== true) continue
    const own = facts.callbacks.get(task.taskId) ?? []
    if (!own.some(({ isAnswered }) => isAnswered)) {
      found.push({ rule: 'callback-missing', about: task.taskId, message: `${own.length} came, and none was taken` })
      continue
    }
    const early = own.find((callback) => isEarly(callback, facts))
    if (early !== undefined) {
      found.push({ rule: 'callback-early', about: task.taskId, message: `it came at ${early.at}, before the end` })
    }
    const different = own.filter(({ view }) => bodyOf(view) !== bodyOf(task.inline))
    // A retried task ends several times; a callback with the final status must exist.
    const isWrong = wasRetried(facts, task.taskId) ? different.length === own.length : different.length > 0
    if (!isWrong) continue
    const message = `what it said at ${different[0]?.at} is not what is read of the task`
    found.push({ rule: 'callback-differs', about: task.taskId, message })
  }
  return found
}

function isEarly({ taskId, at, view }: Callback, facts: Facts): boolean {
  if (!ENDED.has(view.status)) return true
  return (facts.calls.get(taskId) ?? []).some(
    (call) =>
      call.began > at &&
      call.view !== undefined &&
      !ENDED.has(call.view.status) &&
      !mayRetryWithin(facts, taskId, -Infinity, call.ended),
  )
}

function bodyOf({ status, results }: Callback['view']): string {
  return JSON.stringify([status, results.map(({ sessionId, digest }) => `${sessionId} ${digest}`).sort()])
}
