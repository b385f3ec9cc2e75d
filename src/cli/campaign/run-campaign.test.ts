import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { TaskRequest } from '../../model/task.ts'
import { CampaignJournal, type Decision } from './campaign-journal.ts'
import { CampaignPlan } from './campaign-plan.ts'
import { runCampaign, type CampaignBudget, type CampaignDeps, type CampaignSession } from './run-campaign.ts'

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-campaign-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

interface Trial {
  name: string
  tasks?: number
  budget?: CampaignBudget
  undecided?: readonly SessionOutcome[]
  accept?: number
  /** Whether a session is accepted, by its number within the task. */
  accepts?: (number: number) => boolean
  /** Milliseconds of the clock per decision. */
  stepMs?: number
  signal?: AbortSignal
}

function outcomeOf(sessionId: string, taskId: string): SessionOutcome {
  const counts = {
    builder: 'b',
    turns: 2,
    calls: 2,
    rows: 1,
    trainedCalls: 2,
    tokens: { sampled: 10, trained: 10, excluded: 0 },
  }
  const base = { schemaVersion: 1, attempt: 1, nodeId: 'n', status: 'COMPLETED', timing: { run_ms: 5 } } as const
  return { ...base, sessionId, taskId, counts, artifacts: [], endedAt: 0 }
}

async function run(trial: Trial) {
  const { name, tasks: count = 3, budget = {}, undecided = [], accept = 1, accepts = () => true, stepMs = 0 } = trial
  const agent = { harness: 'shell', custom_shell: { command: 'true' } }
  const tasks = Array.from({ length: count }, (_, index) =>
    TaskRequest.parse({ task_id: `t${index}`, instruction: 'x', agent }),
  )
  await using journal = await CampaignJournal.open(join(dir, name), { fingerprint: 'f', newId: () => 'run_1', now: 0 })
  const plan = new CampaignPlan({ tasks, runId: journal.runId, accept, attempts: 5, refills: 5 })
  const submitted: string[] = []
  const made: Decision[] = []
  let running = 0
  let widest = 0
  const submit = ({ sessionId, task }: SessionOrder): CampaignSession => {
    submitted.push(sessionId)
    widest = Math.max(widest, ++running)
    const outcome = Promise.resolve().then(() => outcomeOf(sessionId, task.task_id))
    return { sessionId, outcome: outcome.finally(() => running--), cancel: () => {} }
  }
  const deps: CampaignDeps = {
    plan,
    journal,
    runId: journal.runId,
    submit,
    resumed: [],
    undecided,
    budget,
    width: 2,
    judge: async ({ sessionId }) =>
      accepts(Number(sessionId.slice(-4)))
        ? { verdict: 'accepted', digest: sessionId }
        : { verdict: 'rejected', reason: 'reward' },
    now: () => made.length * stepMs,
    signal: trial.signal ?? new AbortController().signal,
    onDecision: (decision) => made.push(decision),
  }
  return { stopped: await runCampaign(deps), submitted, made, widest, plan }
}

test('it runs until every task has its trajectories, at most `width` sessions at a time', async () => {
  const { stopped, submitted, made, widest } = await run({ name: 'all', accept: 2 })
  expect(stopped).toBe('complete')
  expect([submitted.length, new Set(submitted).size, made.length, widest]).toEqual([6, 6, 6, 2])
})

test('a rejected task is tried again, up to its attempts', async () => {
  expect(await run({ name: 'third', accepts: (number) => number === 3 })).toMatchObject({ stopped: 'complete' })
  const never = await run({ name: 'never', accepts: () => false })
  expect([never.stopped, never.submitted.length]).toEqual(['attempts', 15])
})

test.each([
  ['sessions', { sessions: 4 }, 4],
  ['tokens', { tokens: 30 }, 4],
  ['time', { ms: 300 }, 4],
] as const)('the budget of %s ends it', async (stopped, budget, sessions) => {
  const ended = await run({ name: stopped, budget, accepts: () => false, stepMs: 100 })
  expect(ended.stopped).toBe(stopped)
  // Sessions that run when the budget ends are decided, too.
  expect(ended.submitted.length).toBeLessThanOrEqual(sessions)
  expect(ended.made.length).toBe(ended.submitted.length)
})

test('a later process repeats no decided session, and decides about sessions that had ended', async () => {
  const first = await run({ name: 'again', budget: { sessions: 1 } })
  expect(first.submitted).toHaveLength(1)
  const ended = first.plan.next()!
  const later = await run({ name: 'again', undecided: [outcomeOf(ended.sessionId, ended.task.task_id)] })
  expect(later.made.map(({ sessionId }) => sessionId)).toEqual([ended.sessionId, ...later.submitted])
  expect(later.submitted).toHaveLength(1)
  expect(later.stopped).toBe('complete')
})

test('an interrupt starts no further session', async () => {
  expect(await run({ name: 'interrupt', signal: AbortSignal.abort() })).toMatchObject({
    stopped: 'interrupted',
    submitted: [],
  })
})
