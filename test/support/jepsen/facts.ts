import type { AgentRun, Call, Callback, Entry, FinalTask, History, Order, Report, TaskPlan } from './history.ts'

/** Indexes of a history for the rules. */
export interface Facts {
  history: History
  plans: ReadonlyMap<string, TaskPlan>
  tasks: ReadonlyMap<string, FinalTask>
  taskOf: ReadonlyMap<string, string>
  calls: ReadonlyMap<string, readonly Call[]>
  callbacks: ReadonlyMap<string, readonly Callback[]>
  orders: readonly Order[]
  /** By session and attempt. */
  ordersOf: ReadonlyMap<string, readonly Order[]>
  reports: readonly Report[]
  reportsOf: ReadonlyMap<string, readonly Report[]>
  runs: ReadonlyMap<string, AgentRun>
}

/** A violated rule. */
export interface Violation {
  rule: string
  /** Task or session id, which selects the related entries of the history. */
  about: string
  message: string
}

export function gatherFacts(history: History): Facts {
  const { entries, final } = history
  const calls = entries.filter(isKind('call'))
  const orders = entries.filter(isKind('order'))
  const reports = entries.filter(isKind('report'))
  return {
    history,
    plans: new Map(history.plans.map((plan) => [plan.taskId, plan])),
    tasks: new Map(final.tasks.map((task) => [task.taskId, task])),
    taskOf: new Map(final.tasks.flatMap((task) => task.sessions.map(({ sessionId }) => [sessionId, task.taskId]))),
    calls: Map.groupBy(calls, ({ taskId }) => taskId),
    callbacks: Map.groupBy(entries.filter(isKind('callback')), ({ taskId }) => taskId),
    orders,
    ordersOf: Map.groupBy(orders, keyOf),
    reports,
    reportsOf: Map.groupBy(reports, keyOf),
    runs: new Map(entries.filter(isKind('run')).map((run) => [run.nonce, run])),
  }
}

export function keyOf({ sessionId, attempt }: { sessionId: string; attempt: number }): string {
  return `${sessionId}/${attempt}`
}

export const ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'cancelled'])
export const TERMINAL: ReadonlySet<string> = new Set(['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'])

/** Whether a retry in that time may have restarted sessions: not rejected, and with at least one session. */
export function mayRetryWithin(facts: Facts, taskId: string, from: number, to: number): boolean {
  return (facts.calls.get(taskId) ?? []).some(
    ({ op, outcome, retried, began, ended }) =>
      op === 'retry' && outcome !== 'refused' && retried !== 0 && began < to && ended > from,
  )
}

export function wasRetried(facts: Facts, taskId: string): boolean {
  return mayRetryWithin(facts, taskId, -Infinity, Infinity)
}

/** Whether the task may have been cancelled. */
export function wasCancelled(facts: Facts, taskId: string): boolean {
  return (facts.calls.get(taskId) ?? []).some(({ op, outcome }) => op === 'cancel' && outcome !== 'refused')
}

function isKind<Kind extends Entry['kind']>(kind: Kind) {
  return (entry: Entry): entry is Extract<Entry, { kind: Kind }> => entry.kind === kind
}
