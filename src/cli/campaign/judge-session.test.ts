import { expect, test } from 'vitest'
import { call, chatReader, says, toySession, user, type ToyCall } from '../../../test/support/toy-calls.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import { builders } from '../../trajectory/builders/index.ts'
import { CallFilter } from '../../trajectory/select-calls.ts'
import { AcceptRules } from './accept-rules.ts'
import { judgeSession, type JudgeDeps } from './judge-session.ts'
import { createSecretScrubber } from './secrets.ts'

const deps: JudgeDeps = {
  load: async () => sessionWith('done'),
  build: {
    builder: builders.create({ kind: 'prefix_merging', splice: false }, {}),
    filter: CallFilter.parse({}),
    weighting: 'tokens',
    reader: chatReader,
  },
  rules: AcceptRules.parse({ minReward: 1, endings: ['completed'], minToolCalls: 0, maxTurns: null }),
  scrubber: createSecretScrubber(['hunter2-hunter2']),
  exportsTokens: false,
  hasDigest: () => false,
}

function sessionWith(answer: string, more: Partial<ToyCall> = {}): SessionRecord {
  return toySession([{ id: 't1', messages: [user('Go')], answer: says(answer), ...more }])
}

function outcomeWith(more: Partial<SessionOutcome>): SessionOutcome {
  return {
    schemaVersion: 1,
    sessionId: 'ses_1',
    taskId: 'task',
    attempt: 1,
    nodeId: 'n',
    status: 'COMPLETED',
    ending: { kind: 'completed', exitCode: 0 },
    grade: { outcome_reward: 1, metadata: {} },
    timing: {},
    artifacts: [],
    endedAt: 0,
    ...more,
  }
}

async function digestOf(session: SessionRecord): Promise<string> {
  const { verdict, digest } = await judgeSession(outcomeWith({}), { ...deps, load: async () => session })
  expect(verdict).toBe('accepted')
  return digest!
}

test('the digest is of the trained answers: another context does not change it, another answer does', async () => {
  const digest = await digestOf(sessionWith('done'))
  expect(await digestOf(sessionWith('done', { messages: [user('Go, it is 12:01')] }))).toBe(digest)
  expect(await digestOf(sessionWith('Done'))).not.toBe(digest)
})

test('a trajectory with the digest of an accepted one is a duplicate', async () => {
  const hasDigest = (taskId: string): boolean => taskId === 'task'
  expect(await judgeSession(outcomeWith({}), { ...deps, hasDigest })).toMatchObject({
    verdict: 'rejected',
    reason: 'duplicate',
  })
})

test('a session that failed because of infrastructure is not an attempt', async () => {
  const { failure } = new RolloutError('session.node-lost', 'gone')
  const lost = outcomeWith({ status: 'ERROR', failure, ending: undefined, grade: undefined })
  expect(await judgeSession(lost, deps)).toEqual({ verdict: 'failed', reason: 'session.node-lost' })
})

test('the calls of a session without the reward are not read', async () => {
  const load = (): never => {
    throw new Error('read')
  }
  const outcome = outcomeWith({ grade: { outcome_reward: 0.5, metadata: {} } })
  expect(await judgeSession(outcome, { ...deps, load })).toEqual({ verdict: 'rejected', reason: 'reward' })
})

test('a session whose call log is damaged is rejected', async () => {
  const load = (): Promise<never> => Promise.reject(new RolloutError('store.corrupt', 'damaged'))
  expect(await judgeSession(outcomeWith({}), { ...deps, load })).toEqual({ verdict: 'rejected', reason: 'incomplete' })
})

test('tool calls of trained answers are counted', async () => {
  const rules = { ...deps.rules, minToolCalls: 2 }
  const two = sessionWith('', { answer: says('', { calls: [call('read', {}), call('write', {})] }) })
  expect(await judgeSession(outcomeWith({}), { ...deps, rules, load: async () => two })).toMatchObject({
    verdict: 'accepted',
    toolCalls: 2,
  })
  expect(await judgeSession(outcomeWith({}), { ...deps, rules })).toMatchObject({ reason: 'tool-calls', toolCalls: 0 })
})

test('a secret rejects a session if a format contains tokens, and is counted otherwise', async () => {
  const load = async (): Promise<SessionRecord> => sessionWith('the password is hunter2-hunter2')
  expect(await judgeSession(outcomeWith({}), { ...deps, load, exportsTokens: true })).toMatchObject({
    reason: 'secret',
  })
  expect(await judgeSession(outcomeWith({}), { ...deps, load })).toMatchObject({ verdict: 'accepted', secrets: 1 })
})
