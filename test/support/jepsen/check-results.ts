import { type Facts, keyOf, mayRetryWithin, type Violation } from './facts.ts'
import type { Report, ResultFact } from './history.ts'
import { rewardOf } from './witness.ts'

/** Every accepted result is stored once, was delivered by the holder of the lease, and comes from an agent that ran. */
export function checkResults(facts: Facts): Violation[] {
  return [
    ...checkOrders(facts),
    ...checkAnswers(facts),
    ...checkStored(facts),
    ...checkStale(facts),
    ...checkCancelled(facts),
    ...checkTruth(facts),
  ]
}

/** Each attempt number is leased once, because it distinguishes successive holders. */
function checkOrders({ ordersOf }: Facts): Violation[] {
  return [...ordersOf.values()].flatMap(([first, ...others]) => {
    if (first === undefined || others.length === 0) return []
    const nodes = [first, ...others].map(({ nodeId }) => nodeId).join(', ')
    const message = `attempt ${first.attempt} was given out ${others.length + 1} times, to ${nodes}`
    return [{ rule: 'ordered-twice', about: first.sessionId, message }]
  })
}

/** Compares the answers to nodes with the stored results. */
function checkAnswers({ reports, reportsOf, history }: Facts): Violation[] {
  const stored = new Set(history.final.database.results.map(keyOf))
  const found: Violation[] = []
  for (const report of reports) {
    const { origin, answer, sessionId, attempt, note } = report
    if (origin === 'forged' && answer === 'accepted') {
      found.push({ rule: 'forged-accepted', about: sessionId, message: `attempt ${attempt}: ${note ?? 'forged'}` })
    } else if (origin !== 'forged' && isGood(report) && !stored.has(keyOf(report))) {
      const message = `attempt ${attempt} was answered with ${answer}, and there is no result of it`
      found.push({ rule: 'accepted-lost', about: sessionId, message })
    }
  }
  for (const own of reportsOf.values()) {
    const accepted = own.filter(({ answer }) => answer === 'accepted')
    if (accepted.length < 2) continue
    const [{ sessionId, attempt }] = accepted as [Report, ...Report[]]
    const message = `attempt ${attempt} was accepted ${accepted.length} times`
    found.push({ rule: 'accepted-twice', about: sessionId, message })
  }
  return found
}

/** Compares the stored results with the nodes that could have delivered them. */
function checkStored({ history, reportsOf, ordersOf }: Facts): Violation[] {
  const { results, attempts } = history.final.database
  const nodeOf = new Map(attempts.map((attempt) => [keyOf(attempt), attempt.nodeId]))
  return results.flatMap((result) => {
    const { sessionId, attempt } = result
    const key = keyOf(result)
    const nodeId = nodeOf.get(key)
    const brought = (reportsOf.get(key) ?? []).filter(
      ({ origin, answer }) => origin !== 'forged' && answer !== 'refused',
    )
    if (brought.length === 0) {
      const message = `there is a result of attempt ${attempt}, which no node delivered`
      return [{ rule: 'result-invented', about: sessionId, message }]
    }
    const orders = ordersOf.get(key) ?? []
    if (orders.every((order) => order.nodeId !== nodeId)) {
      const message = `attempt ${attempt} was accepted from ${nodeId}, which it was not given to`
      return [{ rule: 'stale-accepted', about: sessionId, message }]
    }
    return []
  })
}

/** After a later attempt was leased, reports of earlier attempts are not accepted. */
function checkStale({ reports, orders }: Facts): Violation[] {
  const ordersOf = Map.groupBy(orders, ({ sessionId }) => sessionId)
  return reports.flatMap((report) => {
    if (report.answer !== 'accepted') return []
    const later = (ordersOf.get(report.sessionId) ?? []).find(
      ({ attempt, at }) => attempt > report.attempt && at < report.began,
    )
    if (later === undefined) return []
    const message = `attempt ${report.attempt} was accepted although ${later.nodeId} had attempt ${later.attempt}`
    return [{ rule: 'stale-accepted', about: report.sessionId, message }]
  })
}

function checkCancelled(facts: Facts): Violation[] {
  return facts.reports.flatMap((report) => {
    const taskId = facts.taskOf.get(report.sessionId)
    if (report.answer !== 'accepted' || taskId === undefined) return []
    const cancel = (facts.calls.get(taskId) ?? []).find(
      ({ op, ended, view }) => op === 'cancel' && view?.status === 'cancelled' && ended < report.began,
    )
    if (cancel === undefined || mayRetryWithin(facts, taskId, cancel.ended, report.ended)) return []
    const message = `attempt ${report.attempt} was accepted after the task had been said to be cancelled`
    return [{ rule: 'cancelled-accepted', about: report.sessionId, message }]
  })
}

/** Compares results with the engine's record, which is independent of server and nodes. */
function checkTruth({ tasks, runs, history }: Facts): Violation[] {
  const attempts = Map.groupBy(history.final.database.attempts, ({ sessionId }) => sessionId)
  const seen = new Map<string, string>()
  const found: Violation[] = []
  const say = (rule: string, { sessionId }: ResultFact, message: string): void => {
    found.push({ rule, about: sessionId, message })
  }
  for (const result of [...tasks.values()].flatMap(({ inline }) => inline.results)) {
    const { sessionId, nonces, nodeId, status, reward, isMade } = result
    if (isMade && (nonces.length > 0 || status === 'COMPLETED')) say('never-ran', result, 'the server made it up')
    if (status === 'COMPLETED' && nonces.length === 0) say('never-ran', result, 'no agent is to be seen in its result')
    if (nonces.length > 1) say('mixed-attempts', result, `its result holds the calls of runs ${nonces.join(' and ')}`)
    for (const nonce of nonces) {
      const run = runs.get(nonce)
      if (run === undefined || run.sessionId !== sessionId) {
        say('never-ran', result, `its result is of a run ${nonce}, which the engine never heard of`)
      } else if (nodeId !== null && run.nodeId !== nodeId) {
        say('stale-accepted', result, `its result is said to be of ${nodeId}, but the run was on ${run.nodeId}`)
      } else if (!(attempts.get(sessionId) ?? []).some((attempt) => attempt.nodeId === run.nodeId)) {
        say('stale-accepted', result, `its result is of a run on ${run.nodeId}, which no attempt at it was made on`)
      }
      if (reward !== null && reward !== rewardOf(nonce)) {
        say('reward-changed', result, `its reward is ${reward}, and the run was worth ${rewardOf(nonce)}`)
      }
      const other = seen.get(nonce)
      if (other !== undefined && other !== sessionId) say('doubled-result', result, `the same run is also in ${other}`)
      seen.set(nonce, sessionId)
    }
  }
  return found
}

function isGood({ answer }: Report): boolean {
  return answer === 'accepted' || answer === 'duplicate'
}
