import { expect, test } from 'vitest'
import { checkHistory, explain } from '../support/jepsen/check-history.ts'
import type { Entry, FinalTask, History, ResultFact } from '../support/jepsen/history.ts'
import { nonceOf, sampleHistory } from '../support/jepsen/sample-history.ts'

test('a history in which all went well is found to be well', () => {
  expect(checkHistory(sampleHistory())).toEqual([])
})

/** What is broken, how, and the rule that must notice; others may as well. */
const violations: [what: string, rule: string, spoil: (history: History) => History][] = [
  ['a task that was taken is gone', 'task-lost', (h) => withTasks(h, (tasks) => tasks.filter((t) => t.taskId !== 'a'))],
  ['a task nobody asked for', 'task-invented', (h) => ({ ...h, plans: h.plans.slice(1) })],
  ['a task that never ends', 'task-not-ended', (h) => withTask(h, 'b', (t) => withView(t, { status: 'running' }))],
  ['a session is lost', 'session-lost', (h) => withTask(h, 'a', (t) => ({ ...t, sessions: t.sessions.slice(1) }))],
  ['a sample is made twice', 'session-lost', (h) => withSession(h, 'a1', { sample: 0 })],
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
    'a result is there twice',
    'doubled-result',
    (h) => withResults(h, 'a', (results) => [...results, ...results.slice(0, 1)]),
  ],
  [
    'one run became the result of two sessions',
    'doubled-result',
    (h) => withResults(h, 'a', (results) => results.map((result) => ({ ...result, nonces: [nonceOf('a0')] }))),
  ],
  ['a result went missing', 'result-missing', (h) => withResults(h, 'b', (results) => results.slice(1))],
  [
    'an accepted result is not stored',
    'accepted-lost',
    (h) => withDatabase(h, { results: h.final.database.results.slice(1) }),
  ],
  [
    'a stored result that nobody delivered',
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
    'a result of the node that had lost the session',
    'stale-accepted',
    (h) =>
      withResults(h, 'a', (results) => results.map((r) => (r.sessionId === 'a1' ? { ...r, nonces: ['lost'] } : r))),
  ],
  [
    'accepted from a node it was not given to',
    'stale-accepted',
    (h) =>
      withDatabase(h, {
        attempts: h.final.database.attempts.map((a) => (a.sessionId === 'a0' ? { ...a, nodeId: 'n3' } : a)),
      }),
  ],
  [
    'an attempt is given to two nodes',
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
    'a session of a cancelled task is accepted after the cancel was answered',
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
    'the stream gives something else than the task',
    'routes-disagree',
    (h) => withTask(h, 'a', (t) => ({ ...t, stream: t.stream.map((result) => ({ ...result, digest: 'other' })) })),
  ],
  [
    'a session gives no result though the task does',
    'routes-disagree',
    (h) => withTask(h, 'a', (t) => ({ ...t, bySession: t.bySession.slice(1) })),
  ],
  [
    'a reference leads to another file',
    'routes-disagree',
    (h) => withTask(h, 'a', (t) => ({ ...t, references: t.references.map((r) => ({ ...r, digest: 'other' })) })),
  ],
  [
    'the file of a result is torn',
    'result-missing',
    (h) => withTask(h, 'a', (t) => ({ ...t, references: t.references.map((r) => ({ ...r, isWhole: false })) })),
  ],
  ['a reward is another one in the list', 'reward-changed', (h) => withSession(h, 'a0', { reward: 0 })],
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
    'a task that had ended runs again',
    'read-went-back',
    (h) =>
      withEntries(h, (e) =>
        e.kind === 'call' && e.op === 'read' && e.view?.status === 'running'
          ? { ...e, view: { ...e.view, status: 'failed' } }
          : e,
      ),
  ],
  ['a callback never came', 'callback-missing', (h) => without(h, (e) => e.kind === 'callback' && e.isAnswered)],
  [
    'a callback came for a task that had not ended',
    'callback-early',
    (h) => withEntries(h, (e) => (e.kind === 'callback' && e.taskId === 'a' ? { ...e, at: 20 } : e)),
  ],
  [
    'a callback has another body than the task',
    'callback-differs',
    (h) => withEntries(h, (e) => (e.kind === 'callback' ? { ...e, view: { ...e.view, results: [] } } : e)),
  ],
  [
    'a callback came that nobody wanted',
    'callback-unasked',
    (h) => withEntries(h, (e) => (e.kind === 'callback' ? { ...e, taskId: 'b' } : e)),
  ],
  ['an event was missed', 'event-missing', (h) => withLive(h, (live) => live.toSpliced(3, 1))],
  ['an event came twice', 'event-doubled', (h) => withLive(h, (live) => live.toSpliced(3, 0, live[3]!))],
  ['events came out of order', 'event-out-of-order', (h) => withLive(h, (live) => live.toReversed())],
  [
    'an event is not stored',
    'event-invented',
    (h) => withLive(h, (live) => live.map((e) => ({ ...e, id: `9${e.id}` }))),
  ],
  [
    'nobody was told that a task is over',
    'event-missing',
    (h) => withoutEvents(h, ({ type, taskId }) => type === 'task.completed' && taskId === 'a'),
  ],
  [
    'nobody was told that a session is over',
    'event-missing',
    (h) => withoutEvents(h, ({ sessionId, isRefilled }) => sessionId === 'a1' && isRefilled === undefined),
  ],
  [
    'who followed the stream read something else',
    'routes-disagree',
    (h) => withTask(h, 'a', (t) => ({ ...t, followed: t.stream.toReversed() })),
  ],
  [
    'a result that the server made up is called complete',
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
  ['a trainer waits for ever', 'not-over-in-time', (h) => ({ ...h, final: { ...h.final, unfinished: ['a'] } })],
  ['a server gave up by itself', 'crashed', (h) => ({ ...h, final: { ...h.final, crashes: ['server'] } })],
  ['the tables disagree', 'books-disagree', (h) => withDatabase(h, { problems: ['ended of a is 1, not 2'] })],
  ['a sandbox was left', 'left-behind', (h) => ({ ...h, final: { ...h.final, left: ['process 7: bash'] } })],
]

test.each(violations)('%s: %s', (_, rule, spoil) => {
  const history = spoil(sampleHistory())
  const found = checkHistory(history)
  expect(found.map((violation) => violation.rule)).toContain(rule)
  for (const violation of found) expect(explain(violation, history)).toContain(violation.message)
})

test('a task that was retried may change, but its last word must have been said', () => {
  const history = sampleHistory()
  const retry: Entry = { kind: 'call', op: 'retry', taskId: 'c', began: 62, ended: 63, outcome: 'unknown' }
  const before = (e: Entry): Entry => {
    if (e.kind === 'call' && e.op === 'cancel') return { ...e, view: { ...e.view!, completed: 1, results: [] } }
    return e
  }
  const retried = { ...history, entries: [...history.entries.map(before), retry] }
  expect(checkHistory(retried)).toEqual([])
  const unsaid = withEntries(retried, (e) =>
    e.kind === 'callback' && e.taskId === 'c' ? { ...e, view: { ...e.view, results: [] } } : e,
  )
  expect(checkHistory(unsaid)).toMatchObject([{ rule: 'callback-differs', about: 'c' }])
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

/** By all routes at once. */
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

function without(history: History, isGone: (entry: Entry) => boolean): History {
  return { ...history, entries: history.entries.filter((entry) => !isGone(entry)) }
}

function withDatabase(history: History, more: Partial<History['final']['database']>): History {
  return { ...history, final: { ...history.final, database: { ...history.final.database, ...more } } }
}

type Events = History['final']['events']['live']

function withLive(history: History, change: (live: Events) => Events): History {
  const { replayed, live } = history.final.events
  return { ...history, final: { ...history.final, events: { replayed, live: change(live) } } }
}

/** From everywhere, as if they had never been written. */
function withoutEvents(history: History, isGone: (event: Events[number]) => boolean): History {
  const events = history.final.events.replayed.filter((event) => !isGone(event))
  const emptied = withDatabase(history, { events: events.map(({ id }) => id) })
  return { ...emptied, final: { ...emptied.final, events: { live: events, replayed: events } } }
}
