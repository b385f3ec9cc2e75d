import { ENDED, type Facts, keyOf, mayRetryWithin, TERMINAL, type Violation, wasRetried } from './facts.ts'
import type { Call, FinalTask, ResultFact, TaskView } from './history.ts'

/** All routes return the same data of a task, and data that was read once does not change. */
export function checkReads(facts: Facts): Violation[] {
  return [...facts.tasks.values()].flatMap((task) => [
    ...checkRoutes(task, facts),
    ...checkRewards(task),
    ...checkOverTime(task, facts),
  ])
}

function checkRoutes(task: FinalTask, facts: Facts): Violation[] {
  const { taskId, inline, bySession, references, sessions } = task
  const found: Violation[] = []
  // A retried session has ended more than once; the last result counts.
  const stream = wasRetried(facts, taskId) ? lastOfEach(task.stream) : task.stream
  const routes = { 'the task': inline.results, 'the stream': stream, 'the session': bySession }
  const digests = digestsOf(inline.results)
  for (const [name, results] of Object.entries(routes)) {
    for (const [sessionId, own] of Map.groupBy(results, (result) => result.sessionId)) {
      if (own.length === 1) continue
      found.push({ rule: 'doubled-result', about: sessionId, message: `${name} gives it ${own.length} times` })
    }
    const here = digestsOf(results)
    for (const sessionId of new Set([...digests.keys(), ...here.keys()])) {
      if (digests.get(sessionId) === here.get(sessionId)) continue
      const message = `${name} gives ${here.get(sessionId) ?? 'nothing'}, the task ${digests.get(sessionId) ?? 'nothing'}`
      found.push({ rule: 'routes-disagree', about: sessionId, message })
    }
  }
  const followed = task.followed?.map(({ sessionId, digest }) => `${sessionId} ${digest}`)
  const streamed = task.stream.map(({ sessionId, digest }) => `${sessionId} ${digest}`)
  // A stream that ended with the task does not contain results of a retry.
  const isWhole = wasRetried(facts, taskId)
    ? (followed?.length ?? 0) >= digests.size
    : followed?.length === streamed.length
  if (followed !== undefined && !(isWhole && followed.every((line, place) => line === streamed[place]))) {
    const message = `who followed its results read ${followed.length}, who reads them now ${streamed.length}, or others`
    found.push({ rule: 'routes-disagree', about: taskId, message })
  }
  const statuses = new Map(sessions.map(({ sessionId, status }) => [sessionId, status]))
  for (const { sessionId, taskId: said, status } of inline.results) {
    if (said !== taskId || !statuses.has(sessionId)) {
      found.push({ rule: 'result-invented', about: sessionId, message: `it is no session of ${taskId}` })
    } else if (statuses.get(sessionId) !== status) {
      const message = `it is ${statuses.get(sessionId)}, and ${status} in its result`
      found.push({ rule: 'routes-disagree', about: sessionId, message })
    }
  }
  for (const { sessionId, status } of sessions) {
    if (!TERMINAL.has(status) || digests.has(sessionId)) continue
    found.push({ rule: 'result-missing', about: sessionId, message: `it is ${status}, and has no result` })
  }
  return [...found, ...checkReferences(taskId, { references, results: inline.results }, facts)]
}

function checkReferences(
  taskId: string,
  { references, results }: { references: FinalTask['references']; results: readonly ResultFact[] },
  { history, taskOf }: Facts,
): Violation[] {
  const found: Violation[] = []
  const stored = history.final.database.results.filter(({ sessionId }) => taskOf.get(sessionId) === taskId)
  const rows = new Map(stored.map((row) => [keyOf(row), row.digest]))
  for (const reference of references) {
    const { sessionId, attempt, digest, isWhole } = reference
    if (!isWhole) {
      found.push({ rule: 'result-missing', about: sessionId, message: `the file of attempt ${attempt} is not whole` })
    }
    if (rows.get(keyOf(reference)) === digest) continue
    const message = `the reference of attempt ${attempt} is not what is stored`
    found.push({ rule: 'routes-disagree', about: sessionId, message })
  }
  const brought = new Set(results.filter(({ isMade }) => !isMade).map(({ sessionId }) => sessionId))
  const named = new Set(references.map(({ sessionId }) => sessionId))
  for (const sessionId of new Set([...brought, ...named])) {
    if (brought.has(sessionId) === named.has(sessionId)) continue
    const message = `it is ${named.has(sessionId) ? '' : 'not '}among the references, and the task says otherwise`
    found.push({ rule: 'routes-disagree', about: sessionId, message })
  }
  return found
}

function checkRewards({ inline, sessions }: FinalTask): Violation[] {
  const rewards = new Map(sessions.map(({ sessionId, reward }) => [sessionId, reward]))
  return inline.results.flatMap(({ sessionId, reward }) => {
    const listed = rewards.get(sessionId) ?? null
    if (listed === reward) return []
    const message = `its reward is ${listed} in the list and ${reward} in its result`
    return [{ rule: 'reward-changed', about: sessionId, message }]
  })
}

type Reading = Call & { view: TaskView }

function checkOverTime({ taskId, inline }: FinalTask, facts: Facts): Violation[] {
  const found: Violation[] = []
  const reads = (facts.calls.get(taskId) ?? []).filter((call): call is Reading => call.view !== undefined)
  const last: Reading = {
    kind: 'call',
    op: 'read',
    taskId,
    began: Infinity,
    ended: Infinity,
    outcome: 'ok',
    view: inline,
  }
  for (const earlier of reads) {
    // Compares each read with the next read that began after its end, and with the final state.
    const next = reads.filter(({ began }) => began > earlier.ended).sort((a, b) => a.began - b.began)[0]
    for (const later of next === undefined ? [last] : [next, last]) {
      if (!mayRetryWithin(facts, taskId, earlier.began, later.ended))
        found.push(...compareReads(taskId, earlier, later))
    }
  }
  return found
}

function compareReads(taskId: string, { view: a, ended }: Reading, { view: b }: Reading): Violation[] {
  const found: Violation[] = []
  if (b.completed < a.completed || (ENDED.has(a.status) && a.status !== b.status)) {
    const message = `at ${ended} it was ${a.status} with ${a.completed} over, and later ${b.status} with ${b.completed}`
    found.push({ rule: 'read-went-back', about: taskId, message })
  }
  const later = new Map(b.results.map((result) => [result.sessionId, result]))
  for (const result of a.results) {
    const now = later.get(result.sessionId)
    if (now?.digest === result.digest && now.reward === result.reward) continue
    const rule =
      now === undefined ? 'result-missing' : now.reward === result.reward ? 'result-changed' : 'reward-changed'
    found.push({ rule, about: result.sessionId, message: `it was read at ${ended}, and later not the same` })
  }
  if (ENDED.has(a.status) && b.results.length > a.results.length) {
    const message = `it had ended with ${a.results.length} results at ${ended}, and has ${b.results.length} later`
    found.push({ rule: 'cancelled-accepted', about: taskId, message })
  }
  return found
}

function lastOfEach(results: readonly ResultFact[]): ResultFact[] {
  return [...new Map(results.map((result) => [result.sessionId, result])).values()]
}

function digestsOf(results: readonly ResultFact[]): Map<string, string> {
  return new Map(results.map(({ sessionId, digest }) => [sessionId, digest]))
}
