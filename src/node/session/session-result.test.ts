import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { zstdDecompressSync } from 'node:zlib'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { orderOf, shellTask } from '../../../test/support/node-stack.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { SessionResult } from '../../model/session.ts'
import { renderResult, writeResult } from './session-result.ts'

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-result-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

const task = shellTask('true', {
  task_id: 't"traces":[1',
  metadata: { policy_version: 7, group_id: 3, trap: '"traces":[', polar: 'ours comes after' },
})
const order = orderOf(task)

function outcomeOf(more: Partial<SessionOutcome> = {}): SessionOutcome {
  return {
    schemaVersion: 1,
    sessionId: order.sessionId,
    taskId: task.task_id,
    attempt: 1,
    nodeId: 'node-1',
    status: 'COMPLETED',
    timing: { run_ms: 5 },
    artifacts: [],
    endedAt: 1,
    ...more,
  }
}

test('renderResult() yields the JSON of one result, with the metadata of the trainer', () => {
  const grade = { outcome_reward: 0.5, metadata: { tests: 3 } }
  const text = [...renderResult({ order, outcome: outcomeOf({ grade }) })].join('')
  const result = SessionResult.parse(JSON.parse(text))
  expect(result).toMatchObject({
    session_id: order.sessionId,
    task_id: task.task_id,
    status: 'COMPLETED',
    error: null,
    metadata: { policy_version: 7, trap: '"traces":[', polar: { attempt: 1, evaluation: { outcome_reward: 0.5 } } },
    trajectory: {
      status: 'COMPLETED',
      traces: [],
      metadata: { policy_version: 7, group_id: 3, evaluation: { tests: 3 }, task_metadata: task.metadata },
    },
  })
})

test('status is ERROR for an ending that NVIDIA Polar does not have; polar_status has the exact status', () => {
  const failure = new RolloutError('session.node-lost', 'Gone.').failure
  const text = [...renderResult({ order, outcome: outcomeOf({ status: 'CANCELLED', failure }) })].join('')
  expect(SessionResult.parse(JSON.parse(text))).toMatchObject({
    status: 'ERROR',
    polar_status: 'CANCELLED',
    error: 'Gone.',
    failure: { code: 'session.node-lost' },
    trajectory: { status: 'ERROR', error: 'Gone.' },
  })
})

test('timing has the four keys of NVIDIA Polar without null; polar_timing has all keys', () => {
  const timing = { register_to_init_queue_ms: 1, init_ms: 2, ready_queue_ms: 3, run_ms: null, build_ms: 4 }
  const text = [...renderResult({ order, outcome: outcomeOf({ timing }) })].join('')
  const result = JSON.parse(text) as SessionResult
  expect(result.timing).toEqual({ register_to_init_queue_ms: 1, init_ms: 2 })
  expect(result.polar_timing).toEqual(timing)
})

test('trajectory metadata has the evaluation, model and agent fields of NVIDIA Polar', () => {
  const failure = new RolloutError('session.agent-timeout', 'Too long.').failure
  const graded = {
    ...order,
    task: { ...task, evaluator: { strategy: 'command', config: {}, env: {}, refresh_runtime: false } },
  }
  const outcome = outcomeOf({
    status: 'TIMEOUT',
    failure,
    ending: { kind: 'timeout', exitCode: null },
    grade: { outcome_reward: 0.25, metadata: { tests: 3 } },
  })
  const text = [...renderResult({ order: graded, outcome })].join('')
  expect((JSON.parse(text) as SessionResult).trajectory.metadata).toMatchObject({
    evaluation: { tests: 3, strategy: 'command', outcome_reward: 0.25, trace_rewards: null },
    agent_result: { status: 'timeout', return_code: null, timeout_source: 'agent', timeout_stage: 'exec' },
    model_requested: null,
    model_used: null,
    api_type: null,
  })
})

test('writeResult() writes atomically', async () => {
  const path = join(scratch, 'result.json.zst')
  await writeResult(path, { order, outcome: outcomeOf() })
  const text = zstdDecompressSync(await readFile(path)).toString()
  expect(SessionResult.parse(JSON.parse(text)).session_id).toBe(order.sessionId)
  const broken = {
    get session(): never {
      throw new Error('cannot be built')
    },
  }
  await expect(
    writeResult(join(scratch, 'other'), { order, outcome: outcomeOf(), built: broken as never }),
  ).rejects.toThrow('cannot be built')
  expect(await readdir(scratch)).toEqual(['result.json.zst'])
})
