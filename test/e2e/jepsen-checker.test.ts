import { expect, test } from 'vitest'
import { checkHistory, explain } from '../support/jepsen/check-history.ts'
import type { Entry, FinalTask, History, ResultFact } from '../support/jepsen/history.ts'
import { nonceOf, sampleHistory } from '../support/jepsen/sample-history.ts'

test('a correct history has no violations', () => {
  expect(checkHistory(sampleHistory())).toEqual([])
})

/** A violation, the rule that must detect it, and a function that adds it to a history. Other rules may detect it too. */
const violations: [what: string, rule: string, corrupt: (history: History) => History][] = [
  ['an accepted task is missing', 'task-lost', (h) => withTasks(h, (tasks) => tasks.filter((t) => t.taskId !== 'a'))],
  ['a task that no client submitted', 'task-invented', (h) => ({ ...h, plans: h.plans.slice(1) })],
  ['a task that never ends', 'task-not-ended', (h) => withTask(h, 'b', (t) => withView(t, { status: 'running' }))],
  ['a session is missing', 'session-lost', (h) => withTask(h, 'a', (t) => ({ ...t, sessions: t.sessions.slice(1) }))],
  ['a sample has two sessions', 'session-lost', (h) => withSession(h, 'a1', { sample: 0 })],
  ['a session never ends', 'session-not-ended', (h) => withSession(h, 'a1', { status: 'RUNNING' })],
  [
    'a task ended with too few sessions',
    'ended-too-early',
    (h) => ({ ...withSession(h, 'b0', {}), plans: h.plans.map(({ earlyStop: _, ...plan }) => plan) }),
  ],
  [
    'a task is cancelled without a reason',
    'wrong-ending',
    (h) => without(h, (e) => e.kind === 'call' && e.op === 'cancel'),
  ],
  [
    'a task that failed has valid sessions',
    'wrong-ending',
    (h) => withTask(h, 'a', (t) => withView(t, { status: 'failed' })),
  ],
  [
    'the counters of a task disagree',
    'counters-disagree',
    (h) => withTask(h, 'a', (t) => withView(t, { completed: 1 })),
  ],
  [
    'the counters of the list disagree',
    'counters-disagree',
    (h) => withTask(h, 'b', (t) => ({ ...t, counts: { ...t.counts, valid: 2 } })),
  ],
  [
    'a result is stored twice',
    'doubled-result',
    (h) => withResults(h, 'a', (results) => [...results, ...results.slice(0, 1)]),
  ],
  [
    'a run is the result of two sessions',
    'doubled-result',
    (h) => withResults(h, 'a', (results) => results.map((result) => ({ ...result, nonces: [nonceOf('a0')] }))),
  ],
  ['a result is missing', 'result-missing', (h) => withResults(h, 'b', (results) => results.slice(1))],
  [
    'an accepted result is not stored',
    'accepted-lost',
    (h) => withDatabase(h, { results: h.final.database.results.slice(1) }),
  ],
  [
    'a stored result that no node reported',
    'result-invented',
    (h) => without(h, (e) => e.kind === 'report' && e.sessionId === 'b0'),
  ],
  [
    'a stale attempt is accepted',
    'stale-accepted',
    (h) =>
      withEntries(h, (e) =>
        e.kind === 'report' && e.sessionId === 'a1' && e.attempt === 1 ? { ...e, answer: 'accepted' } : e,
      ),
  ],
  [
    'a result of a node that had lost the lease',
    'stale-accepted',
    (h) =>
      withResults(h, 'a', (results) => results.map((r) => (r.sessionId === 'a1' ? { ...r, nonces: ['lost'] } : r))),
  ],
  [
    'a result of a node without the lease is accepted',
    'stale-accepted',
    (h) =>
      withDatabase(h, {
        attempts: h.final.database.attempts.map((a) => (a.sessionId === 'a0' ? { ...a, nodeId: 'n3' } : a)),
      }),
  ],
  [
    'an attempt is leased to two nodes',
    'ordered-twice',
    (h) => ({ ...h, entries: [...h.entries, { kind: 'order', nodeId: 'n3', sessionId: 'a0', attempt: 1, at: 11 }] }),
  ],
  [
    'a result is accepted twice',
    'accepted-twice',
    (h) => withEntries(h, (e) => (e.kind === 'report' && e.answer === 'duplicate' ? { ...e, answer: 'accepted' } : e)),
  ],
  [
    'a forged result is accepted',
    'forged-accepted',
    (h) => withEntries(h, (e) => (e.kind === 'report' && e.origin === 'forged' ? { ...e, answer: 'accepted' } : e)),
  ],
  [
    'a result of an attempt that never ran',
    'never-ran',
    (h) => without(h, (e) => e.kind === 'run' && e.nonce === nonceOf('a0')),
  ],
  [
    'a result without an agent',
    'never-ran',
    (h) => withResults(h, 'a', (results) => results.map((result) => ({ ...result, nonces: [] }))),
  ],
  [
    'a result mixes two attempts',
    'mixed-attempts',
    (h) =>
      withResults(h, 'a', (results) =>
        results.map((r) => (r.sessionId === 'a1' ? { ...r, nonces: ['lost', nonceOf('a1')] } : r)),
      ),
  ],
  [
    'a result of a cancelled task is accepted after the cancel response',
    'cancelled-accepted',
    (h) => ({
      ...h,
      entries: [
        ...h.entries,
        {
          kind: 'report',
          origin: 'node',
          nodeId: 'n2',
          sessionId: 'c1',
          attempt: 1,
          began: 65,
          ended: 66,
          answer: 'accepted',
        },
      ],
    }),
  ],
  [
    'a cancelled task has more results than when it was cancelled',
    'cancelled-accepted',
    (h) =>
      withEntries(h, (e) => (e.kind === 'call' && e.op === 'cancel' ? { ...e, view: { ...e.view!, results: [] } } : e)),
  ],
  [
    'the result stream differs from the task',
    'routes-disagree',
    (h) => withTask(h, 'a', (t) => ({ ...t, stream: t.stream.map((result) => ({ ...result, digest: 'other' })) })),
  ],
  [
    'the task has a result that the session route lacks',
    'routes-disagree',
    (h) => withTask(h, 'a', (t) => ({ ...t, bySession: t.bySession.slice(1) })),
  ],
  [
    'a reference points to another file',
    'routes-disagree',
    (h) => withTask(h, 'a', (t) => ({ ...t, references: t.references.map((r) => ({ ...r, digest: 'other' })) })),
  ],
  [
    'the file of a result is truncated',
    'result-missing',
    (h) => withTask(h, 'a', (t) => ({ ...t, references: t.references.map((r) => ({ ...r, isWhole: false })) })),
  ],
  ['a reward differs in the list of sessions', 'reward-changed', (h) => withSession(h, 'a0', { reward: 0 })],
  [
    'a reward changes between two reads',
    'reward-changed',
    (h) => withReads(h, (results) => results.map((result) => ({ ...result, reward: 0.5 }))),
  ],
  [
    'a result changes between two reads',
    'result-changed',
    (h) => withReads(h, (results) => results.map((result) => ({ ...result, digest: 'before' }))),
  ],
  [
    'an ended task runs again',
    'read-went-back',
    (h) =>
      withEntries(h, (e) =>
        e.kind === 'call' && e.op === 'read' && e.view?.status === 'running'
          ? { ...e, view: { ...e.view, status: 'failed' } }
          : e,
      ),
  ],
  ['a callback is not delivered', 'callback-missing', (h) => without(h, (e) => e.kind === 'callback' && e.isAnswered)],
  [
    'a callback is sent before the task has ended',
    'callback-early',
    (h) => withEntries(h, (e) => (e.kind === 'callback' && e.taskId === 'a' ? { ...e, at: 20 } : e)),
  ],
  [
    'the body of a callback differs from the task',
    'callback-differs',
    (h) => withEntries(h, (e) => (e.kind === 'callback' ? { ...e, view: { ...e.view, results: [] } } : e)),
  ],
  [
    'a callback is sent for a task without callback_url',
    'callback-unasked',
    (h) => withEntries(h, (e) => (e.kind === 'callback' ? { ...e, taskId: 'b' } : e)),
  ],
  ['an event is missing in the live stream', 'event-missing', (h) => withLive(h, (live) => live.toSpliced(3, 1))],
  ['an event is sent twice', 'event-doubled', (h) => withLive(h, (live) => live.toSpliced(3, 0, live[3]!))],
  ['events are out of order', 'event-out-of-order', (h) => withLive(h, (live) => live.toReversed())],
  [
    'an event is not stored',
    'event-invented',
    (h) => withLive(h, (live) => live.map((e) => ({ ...e, id: `9${e.id}` }))),
  ],
  [
    'a task ends without an event',
    'event-missing',
    (h) => withoutEvents(h, ({ type, taskId }) => type === 'task.completed' && taskId === 'a'),
  ],
  [
    'a session ends without an event',
    'event-missing',
    (h) => withoutEvents(h, ({ sessionId, isRefilled }) => sessionId === 'a1' && isRefilled === undefined),
  ],
  [
    'the followed stream differs from the result stream',
    'routes-disagree',
    (h) => withTask(h, 'a', (t) => ({ ...t, followed: t.stream.toReversed() })),
  ],
  [
    'a result that the server generated is marked as complete',
    'never-ran',
    (h) => withResults(h, 'a', (results) => results.map((result) => ({ ...result, isMade: true }))),
  ],
  [
    'a reward belongs to another run',
    'reward-changed',
    (h) =>
      withSession(
        withResults(h, 'a', (rs) => rs.map((r) => ({ ...r, reward: 0.5 }))),
        'a0',
        { reward: 0.5 },
      ),
  ],
  ['a task does not end in time', 'not-over-in-time', (h) => ({ ...h, final: { ...h.final, unfinished: ['a'] } })],
  ['a server crashes', 'crashed', (h) => ({ ...h, final: { ...h.final, crashes: ['server'] } })],
  ['the tables are inconsistent', 'books-disagree', (h) => withDatabase(h, { problems: ['ended of a is 1, not 2'] })],
  [
    'a process of a sandbox is left',
    'left-behind',
    (h) => ({ ...h, final: { ...h.final, left: ['process 7: bash'] } }),
  ],
]

test.each(violations)('%s: %s', (_, rule, corrupt) => {
  const history = corrupt(sampleHistory())
  const found = checkHistory(history)
  expect(found.map((violation) => violation.rule)).toContain(rule)
  for (const violation of found) expect(explain(violation, history)).toContain(violation.message)
})

test('a retried task may change, but its last callback must match its final state', () => {
  const history = sampleHistory()
  const retry: Entry = { kind: 'call', op: 'retry', taskId: 'c', began: 62, ended: 63, outcome: 'unknown' }
  const before = (e: Entry): Entry => {
    if (e.kind === 'call' && e.op === 'cancel') return { ...e, view: { ...e.view!, completed: 1, results: [] } }
    return e
  }
  const retried = { ...history, entries: [...history.entries.map(before), retry] }
  expect(checkHistory(retried)).toEqual([])
  const outdated = withEntries(retried, (e) =>
    e.kind === 'callback' && e.taskId === 'c' ? { ...e, view: { ...e.view, results: [] } } : e,
  )
  expect(checkHistory(outdated)).toMatchObject([{ rule: 'callback-differs', about: 'c' }])
})

function withTasks(history: History, change: (tasks: readonly FinalTask[]) => FinalTask[]): History {
  return { ...history, final: { ...history.final, tasks: change(history.final.tasks) } }
}

function withTask(history: History, taskId: string, change: (task: FinalTask) => FinalTask): History {
  return withTasks(history, (tasks) => tasks.map((task) => (task.taskId === taskId ? change(task) : task)))
}

function withView(task: FinalTask, more: Partial<FinalTask['inline']>): FinalTask {
  return { ...task, inline: { ...task.inline, ...more } }
}

function withSession(history: History, sessionId: string, more: Partial<FinalTask['sessions'][number]>): History {
  return withTasks(history, (tasks) =>
    tasks.map((task) => ({
      ...task,
      sessions: task.sessions.map((session) => (session.sessionId === sessionId ? { ...session, ...more } : session)),
    })),
  )
}

type ChangeResults = (results: readonly ResultFact[]) => ResultFact[]

/** Changes the results of all routes. */
function withResults(history: History, taskId: string, change: ChangeResults): History {
  return withTask(history, taskId, (task) => {
    const results = change(task.inline.results)
    return { ...withView(task, { results }), stream: results, followed: results, bySession: results }
  })
}

function withReads(history: History, change: ChangeResults): History {
  return withEntries(history, (e) =>
    e.kind === 'call' && e.op === 'read' && e.view?.status === 'running'
      ? { ...e, view: { ...e.view, results: change(e.view.results) } }
      : e,
  )
}

function withEntries(history: History, change: (entry: Entry) => Entry): History {
  return { ...history, entries: history.entries.map(change) }
}

function without(history: History, isRemoved: (entry: Entry) => boolean): History {
  return { ...history, entries: history.entries.filter((entry) => !isRemoved(entry)) }
}

function withDatabase(history: History, more: Partial<History['final']['database']>): History {
  return { ...history, final: { ...history.final, database: { ...history.final.database, ...more } } }
}

type Events = History['final']['events']['live']

function withLive(history: History, change: (live: Events) => Events): History {
  const { replayed, live } = history.final.events
  return { ...history, final: { ...history.final, events: { replayed, live: change(live) } } }
}

/** Removes events from the database, the live stream and the replay. */
function withoutEvents(history: History, isRemoved: (event: Events[number]) => boolean): History {
  const events = history.final.events.replayed.filter((event) => !isRemoved(event))
  const emptied = withDatabase(history, { events: events.map(({ id }) => id) })
  return { ...emptied, final: { ...emptied.final, events: { live: events, replayed: events } } }
}
