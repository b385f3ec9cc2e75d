import { rewardOf } from './witness.ts'
import type { Entry, FinalSession, FinalTask, History, ResultFact, SeenEvent, TaskStatusWord } from './history.ts'

/** A small history without violations that contains every kind of entry. */
export function sampleHistory(): History {
  const a = { sessionId: 'a0', taskId: 'a', nodeId: 'n1', attempt: 1 }
  // The lease of n1 expired and n2 leased the session; n1 reported late.
  const moved = { sessionId: 'a1', taskId: 'a', nodeId: 'n2', attempt: 2 }
  const early = { sessionId: 'b0', taskId: 'b', nodeId: 'n1', attempt: 1 }
  const kept = { sessionId: 'c0', taskId: 'c', nodeId: 'n2', attempt: 1 }
  const done = [a, moved, early, kept]
  const tasks = [
    finalTask('a', 'completed', [ended(a), ended(moved)]),
    finalTask('b', 'completed', [ended(early), cancelled('b1', 'n3')]),
    finalTask('c', 'cancelled', [ended(kept), cancelled('c1', null)]),
  ]
  const events = toEvents(tasks)
  const view = (task: string) => tasks.find(({ taskId }) => taskId === task)!.inline
  const partly = { ...view('a'), status: 'running' as const, completed: 1, results: [toResult(a)] }
  const entries: Entry[] = [
    { kind: 'call', op: 'submit', taskId: 'a', began: 0, ended: 1, outcome: 'ok' },
    { kind: 'call', op: 'submit', taskId: 'b', began: 1, ended: 2, outcome: 'unknown' },
    { kind: 'call', op: 'submit', taskId: 'b', began: 2, ended: 3, outcome: 'ok' },
    { kind: 'call', op: 'submit', taskId: 'c', began: 3, ended: 4, outcome: 'ok' },
    { kind: 'order', nodeId: 'n1', sessionId: 'a1', attempt: 1, at: 5 },
    { kind: 'run', nodeId: 'n1', sessionId: 'a1', nonce: 'lost', at: 6 },
    ...done.flatMap(entriesOf),
    { kind: 'order', nodeId: 'n3', sessionId: 'b1', attempt: 1, at: 25 },
    { kind: 'call', op: 'read', taskId: 'a', began: 26, ended: 27, outcome: 'ok', view: partly },
    report({ ...moved, nodeId: 'n1', attempt: 1 }, 50, 'refused'),
    { ...report(a, 52, 'duplicate'), origin: 'replay' },
    { ...report({ ...a, nodeId: 'n9' }, 53, 'refused'), origin: 'forged', note: 'as another node' },
    { kind: 'call', op: 'cancel', taskId: 'c', began: 60, ended: 61, outcome: 'ok', view: view('c') },
    report({ sessionId: 'b1', nodeId: 'n3', attempt: 1 }, 62, 'refused'),
    { kind: 'callback', taskId: 'a', at: 70, isAnswered: false, view: view('a') },
    { kind: 'callback', taskId: 'a', at: 71, isAnswered: true, view: view('a') },
    { kind: 'callback', taskId: 'c', at: 72, isAnswered: true, view: view('c') },
    { kind: 'call', op: 'read', taskId: 'a', began: 80, ended: 81, outcome: 'ok', view: view('a') },
    { kind: 'fault', at: 82, what: 'kill server' },
  ]
  return {
    plans: [
      { taskId: 'a', samples: 2, maxFailures: 9, wantsCallback: true },
      { taskId: 'b', samples: 2, maxFailures: 9, wantsCallback: false, earlyStop: 1 },
      { taskId: 'c', samples: 2, maxFailures: 9, wantsCallback: true },
    ],
    entries,
    final: {
      tasks,
      events: { live: events, replayed: events },
      database: {
        problems: [],
        results: done.map(({ sessionId, attempt }) => ({ sessionId, attempt, digest: `file-${sessionId}` })),
        attempts: [
          { sessionId: 'a1', attempt: 1, nodeId: 'n1', ending: 'lost' },
          ...done.map(({ sessionId, attempt, nodeId }) => ({ sessionId, attempt, nodeId, ending: 'accepted' })),
          { sessionId: 'b1', attempt: 1, nodeId: 'n3', ending: 'cancelled' },
        ],
        events: events.map(({ id }) => id),
      },
      unfinished: [],
      crashes: [],
      left: [],
    },
  }
}

interface Attempt {
  sessionId: string
  nodeId: string
  attempt: number
}

/** Entries of an attempt that was leased, run, delivered and accepted. */
function entriesOf(attempt: Attempt, place: number): Entry[] {
  const { sessionId, nodeId } = attempt
  return [
    { kind: 'order', ...pick(attempt), at: 10 + place },
    { kind: 'run', nodeId, sessionId, nonce: nonceOf(sessionId), at: 15 + place },
    report(attempt, 20 + place, 'accepted'),
  ]
}

function pick({ sessionId, nodeId, attempt }: Attempt): Attempt {
  return { sessionId, nodeId, attempt }
}

type ReportEntry = Extract<Entry, { kind: 'report' }>

function report(attempt: Attempt, began: number, answer: ReportEntry['answer']): ReportEntry {
  return { kind: 'report', origin: 'node', ...pick(attempt), began, ended: began + 0.5, answer }
}

function toResult({ sessionId, nodeId }: { sessionId: string; nodeId: string | null }): ResultFact {
  return {
    sessionId,
    taskId: sessionId[0]!,
    status: 'COMPLETED',
    nodeId,
    reward: rewardOf(nonceOf(sessionId)),
    nonces: [nonceOf(sessionId)],
    digest: `digest-${sessionId}`,
    isMade: false,
  }
}

function ended({ sessionId, nodeId, attempt }: Attempt): FinalSession {
  return {
    sessionId,
    sample: Number(sessionId[1]),
    status: 'COMPLETED',
    attempt,
    nodeId,
    reward: rewardOf(nonceOf(sessionId)),
  }
}

/** The result that the server created for the session. */
function toMade({ sessionId, nodeId, status }: FinalSession): ResultFact {
  return { ...toResult({ sessionId, nodeId }), status, reward: null, nonces: [], isMade: true }
}

export function nonceOf(sessionId: string): string {
  return `${Buffer.from(sessionId).toString('hex').padStart(8, '0')}-run`
}

function cancelled(sessionId: string, nodeId: string | null): FinalSession {
  return { sessionId, sample: Number(sessionId[1]), status: 'CANCELLED', attempt: 1, nodeId, reward: null }
}

function finalTask(taskId: string, status: TaskStatusWord, sessions: FinalSession[]): FinalTask {
  const valid = sessions.filter((session) => session.status === 'COMPLETED')
  const results = sessions.map((session) => (session.status === 'COMPLETED' ? toResult(session) : toMade(session)))
  const total = sessions.length
  const counts = { samples: total, completed: total, valid: valid.length, usable: valid.length, errored: 0 }
  return {
    taskId,
    inline: { status, total, completed: total, results },
    stream: results,
    followed: results,
    bySession: results,
    references: valid.map(({ sessionId, attempt }) => ({
      sessionId,
      attempt,
      digest: `file-${sessionId}`,
      isWhole: true,
    })),
    sessions,
    counts: { ...counts, cancelled: total - valid.length },
  }
}

function toEvents(tasks: readonly FinalTask[]): SeenEvent[] {
  const told = tasks.flatMap(({ taskId, inline, sessions }) => [
    { type: 'task.created', taskId, status: 'running' },
    ...sessions.map(({ sessionId, attempt, status }) => {
      return { type: 'session.state_changed', taskId, sessionId, attempt, status }
    }),
    { type: 'task.completed', taskId, status: inline.status },
  ])
  const lost = { type: 'session.state_changed', taskId: 'a', sessionId: 'a1', attempt: 1, status: 'ERROR' }
  return [...told.slice(0, 1), { ...lost, isRefilled: true }, ...told.slice(1)].map((event, place) => {
    return { id: `${place + 1}-1`, ...event }
  })
}
