import { setTimeout as sleep } from 'node:timers/promises'
import { onAbort } from '../../lib/async/until-aborted.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { CampaignJournal, Decision } from './campaign-journal.ts'
import type { CampaignPlan, PlannedSession } from './campaign-plan.ts'

/** Limits of the whole campaign, with all earlier processes; absent: none. */
export interface CampaignBudget {
  sessions?: number
  /** Sampled tokens. */
  tokens?: number
  ms?: number
}

export type StopReason = 'complete' | 'attempts' | 'sessions' | 'tokens' | 'time' | 'interrupted'

/** A session in progress, on this machine or on a server. */
export interface CampaignSession {
  readonly sessionId: string
  outcome: Promise<SessionOutcome>
  cancel(reason: string): void
}

export interface CampaignDeps {
  plan: CampaignPlan
  journal: CampaignJournal
  runId: string
  submit: (order: SessionOrder) => CampaignSession
  /** Sessions of an earlier process that run again. The plan counts them as running. */
  resumed: readonly CampaignSession[]
  /** Sessions that ended without a decision, because an earlier process was killed. */
  undecided: readonly SessionOutcome[]
  budget: CampaignBudget
  /** Limit of sessions in progress, in all stages. */
  width: number
  judge: (outcome: SessionOutcome) => Promise<Pick<Decision, 'verdict' | 'reason' | 'digest' | 'toolCalls' | 'secrets'>>
  /** Unix milliseconds. */
  now: () => number
  signal: AbortSignal
  onDecision: (decision: Decision) => void
}

/** Delay after a failed session: a cause such as an engine restart would also fail the next session. */
const MIN_BACKOFF_MS = 1000
const MAX_BACKOFF_MS = 60_000

/** Runs sessions until every task has its trajectories, no task may run again, or a budget ends. */
export async function runCampaign(deps: CampaignDeps): Promise<StopReason> {
  const { plan, journal, runId, budget, now, signal } = deps
  const begun = now()
  let tokens = journal.decisions.reduce((sum, decision) => sum + decision.tokens.sampled, 0)
  let failuresInRow = 0
  let settled = Promise.resolve()

  /** Decisions are made one after the other: a later one must see the digests of the earlier ones. */
  const settle = async (outcome: SessionOutcome, wasRunning: boolean): Promise<void> => {
    const mine = settled.then(async () => {
      const decision = { ...toDecision(outcome, now()), ...(await deps.judge(outcome)) }
      await journal.append(decision)
      plan.add(decision, { wasRunning })
      tokens += decision.tokens.sampled
      failuresInRow = decision.verdict === 'failed' ? failuresInRow + 1 : 0
      deps.onDecision(decision)
    })
    settled = mine.catch(() => {})
    await mine
  }

  const follow = async (session: CampaignSession): Promise<void> => {
    using _ = onAbort(signal, () => session.cancel('The campaign was interrupted.'))
    await settle(await session.outcome, true)
    if (failuresInRow === 0 || signal.aborted) return
    const delay = Math.min(MIN_BACKOFF_MS * 2 ** (failuresInRow - 1), MAX_BACKOFF_MS)
    await sleep(delay, undefined, { signal }).catch(() => {})
  }

  const submit = ({ task, sessionId }: PlannedSession): CampaignSession =>
    deps.submit({ schemaVersion: 1, sessionId, attempt: 1, task, runId })

  const spent = (): StopReason | undefined => {
    if (signal.aborted) return 'interrupted'
    if (plan.started >= (budget.sessions ?? Infinity)) return 'sessions'
    if (tokens >= (budget.tokens ?? Infinity)) return 'tokens'
    return journal.elapsedMs + now() - begun >= (budget.ms ?? Infinity) ? 'time' : undefined
  }

  for (const decision of journal.decisions) plan.add(decision, { wasRunning: false })
  for (const outcome of deps.undecided) await settle(outcome, false)
  const running = new Set<Promise<void>>()
  const add = (work: Promise<void>): void => {
    const tracked: Promise<void> = work.finally(() => running.delete(tracked))
    running.add(tracked)
  }
  for (const session of deps.resumed) add(follow(session))
  for (;;) {
    while (running.size < deps.width && spent() === undefined) {
      const next = plan.next()
      if (next === undefined) break
      add(follow(submit(next)))
    }
    if (running.size === 0) break
    await Promise.race(running)
  }
  if (plan.accepted >= plan.target) return 'complete'
  return plan.reachable === plan.accepted ? 'attempts' : (spent() ?? 'attempts')
}

function toDecision(outcome: SessionOutcome, at: number): Omit<Decision, 'verdict'> {
  const { sessionId, taskId, grade, counts, timing } = outcome
  return {
    entry: 'decision',
    at,
    sessionId,
    taskId,
    ...(grade?.outcome_reward == null ? {} : { reward: grade.outcome_reward }),
    turns: counts?.turns ?? 0,
    tokens: { sampled: counts?.tokens.sampled ?? 0, trained: counts?.tokens.trained ?? 0 },
    ...(timing.run_ms == null ? {} : { runMs: timing.run_ms }),
  }
}
