import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { SCRIPTED } from '../support/answer-script.ts'
import { bashAgent, talkingAgent } from '../support/bash-agent.ts'
import { createNvidiaClient, type Json, listenForCallbacks, type NvidiaClient } from '../support/nvidia-client.ts'
import { nvidiaModels, type NvidiaTaskResult, sampleStatuses } from '../support/nvidia-models.ts'
import { startUp, type UpProcess } from '../support/up-process.ts'

let up: UpProcess
let restarted: UpProcess | undefined
let client: NvidiaClient
let scratch: string
const FLAGS = ['--run', '16', '--init', '8', ...SCRIPTED]
beforeAll(async () => {
  up = await startUp(FLAGS)
  client = createNvidiaClient(up.url, up.tokens.trainer)
  scratch = await mkdtemp(join(tmpdir(), 'polar-nvidia-'))
}, 180_000)
afterAll(async () => {
  await restarted?.[Symbol.asyncDispose]()
  await up?.[Symbol.asyncDispose]()
  await rm(scratch, { recursive: true, force: true })
})

const CONVERSATION = 'talk "What is two and two?" "Are you sure?" "Say it again." > /dev/null'

let count = 0
/** A task as the Slime bridge submits it, with the local runtime, so that sessions of a test share the file system. */
function taskOf(command: string, more: object = {}): { task_id: string } & Record<string, Json> {
  return {
    task_id: `polar-slime-0-${count++}`,
    instruction: 'Say what two and two is.',
    num_samples: 4,
    timeout_seconds: 300.0,
    runtime: { backend: 'local', image: null },
    agent: { harness: 'shell', model_name: 'policy', custom_shell: { command, cwd: null, env: null } },
    builder: { strategy: 'prefix_merging', config: {} },
    evaluator: { strategy: 'session_completed', config: {}, env: {}, refresh_runtime: false },
    metadata: { group_id: count, policy_version: 3, rollout_step: 5 },
    ...more,
  }
}

/** Sets `$n` to a number that is unique among the sessions of a task: 1, 2, 3 … */
const NUMBER_SESSION = (name: string) => `n=0; until mkdir "${scratch}/${name}-$((++n))" 2>/dev/null; do :; done`

/** Parses the body with both versions of NVIDIA's models, which must return the same value. */
function readStrictly(kind: 'TaskStatus' | 'TaskResult', body: Json): NvidiaTaskResult {
  const base = nvidiaModels.base[kind].parse(body)
  const later = nvidiaModels.later[kind].parse(body)
  expect(base).toEqual(later)
  return later
}

function expectAligned({ results }: NvidiaTaskResult): void {
  for (const { trajectory } of results) {
    for (const { loss_mask, response_logprobs, response_ids } of trajectory.traces) {
      expect(response_logprobs).toHaveLength(response_ids.length)
      for (const [at, mask] of loss_mask.entries()) {
        if (mask === 0) expect(response_logprobs![at]).toBe(0)
        else expect(response_logprobs![at]).toBeLessThanOrEqual(0)
      }
    }
  }
}

describe('a client with models as strict as NVIDIA’s', { timeout: 240_000 }, () => {
  test('parses a group of conversations with every field it requires', async () => {
    const task = taskOf(talkingAgent(CONVERSATION), { num_samples: 2, metadata: { group_id: 41, rollout_step: 2 } })
    const status = readStrictly('TaskStatus', await client.submitAndPoll(task))
    expect(status.status).toBe('completed')
    expectAligned(status)
    for (const result of status.results) {
      expect(sampleStatuses(result)).toHaveLength(1)
      const [trace] = result.trajectory.traces
      // Three calls in one trace; the user messages between them are masked.
      expect(new Set(trace!.loss_mask)).toEqual(new Set([0, 1]))
      expect(trace!.metadata['group_id']).toBe(41)
      expect(trace!.metadata['calls']).toHaveLength(3)
      expect(trace!.reward).toBe(1)
      expect(result.metadata).toMatchObject({ group_id: 41 })
      expect(result.trajectory.metadata).toMatchObject({
        group_id: 41,
        record_count: 3,
        model_requested: 'tiny',
        model_used: expect.any(String),
        api_type: 'openai_chat',
        agent_result: { status: 'completed', return_code: 0 },
        evaluation: { strategy: 'session_completed', outcome_reward: 1 },
      })
    }
  })

  test('submits a task as written by model_dump(); unknown fields of other versions are ignored with a warning', async () => {
    const runtime = {
      backend: 'local',
      image: null,
      prepare: [{ type: 'exec', command: 'true', source: null, target: null, cwd: null, env: null }],
      direct_exec_init_command: null,
      internet_volumes: [],
      gpus: '0',
    }
    const task = taskOf(bashAgent('call "Hello." > /dev/null'), { num_samples: '1', runtime, rollout_hint: 'x' })
    const submitted = await client.post('/rollout/task/submit', task)
    expect(submitted).toMatchObject({ status: 200, body: { task_id: task.task_id, status: 'running' } })
    expect(submitted.body.warnings.join('\n')).toMatch(/rollout_hint/)
    expect(readStrictly('TaskStatus', await client.submitAndPoll(task)).results).toHaveLength(1)
  })

  test('authenticates with a token in the URL, which httpx sends as Basic authorization', async () => {
    const authorization = `Basic ${Buffer.from(`x:${up.tokens.trainer}`).toString('base64')}`
    for (const [method, path] of [
      ['GET', '/rollout/status'],
      ['DELETE', '/rollout/task/never-seen?register_if_missing=true'],
    ] as const) {
      expect((await fetch(`${up.url}${path}`, { method, headers: { authorization } })).status, path).toBe(200)
    }
  })

  test('gets 503 at submission for a task that no node can run', async () => {
    const refused = await client.post(
      '/rollout/task/submit',
      taskOf('true', { runtime: { backend: 'local', gpus: 1 } }),
    )
    expect(refused).toMatchObject({ status: 503, body: { detail: expect.stringContaining('gpu') } })
  })

  test('gets new sessions when it submits a finished task id again, with the same or another body', async () => {
    const task = taskOf(bashAgent('call "Hello." > /dev/null'), { num_samples: 1 })
    const first = readStrictly('TaskStatus', await client.submitAndPoll(task))
    const second = readStrictly('TaskStatus', await client.submitAndPoll(task))
    const third = readStrictly('TaskStatus', await client.submitAndPoll({ ...task, instruction: 'Else.' }))
    const ids = [first, second, third].map(({ results }) => results[0]!.session_id)
    expect(new Set(ids).size).toBe(3)
  })

  test('parses 3 × 4 conversations with a timeout, a failure, an early stop and a killed server', async () => {
    await using listener = await listenForCallbacks()
    const gate = join(scratch, 'gate')
    const callback_url = listener.url
    const mixed = taskOf(
      talkingAgent(`${NUMBER_SESSION('mixed')}; ${CONVERSATION}; case $n in 1) sleep 1000;; 2) exit 3;; esac`),
      {
        callback_url,
        metadata: { group_id: 1, agent_timeout: 40 },
      },
    )
    const early = taskOf(
      talkingAgent(`${NUMBER_SESSION('early')}; ${CONVERSATION}; if [ $n -gt 2 ]; then sleep 1000; fi`),
      {
        callback_url,
        early_stop_min_usable_sessions: 2,
      },
    )
    const kept = taskOf(talkingAgent(`until [ -e "${gate}" ]; do sleep 0.2; done; ${CONVERSATION}`), { callback_url })
    expect(await client.post('/rollout/task/submit', mixed)).toMatchObject({ status: 200 })
    // Submits the other tasks when only the session that is to time out still runs, to slow down no other session.
    const ended = async () => (await client.get(`/rollout/task/${mixed.task_id}`)).body.completed_sessions
    await expect.poll(ended, { timeout: 120_000, interval: 300 }).toBeGreaterThanOrEqual(3)
    for (const task of [early, kept]) {
      expect(await client.post('/rollout/task/submit', task)).toMatchObject({ status: 200 })
    }
    for (const { task_id } of [mixed, early]) {
      const state = async () => (await client.get(`/rollout/task/${task_id}`)).body.status
      await expect.poll(state, { timeout: 120_000, interval: 300 }).toBe('completed')
    }
    up.process.kill('SIGKILL')
    restarted = await startUp([...FLAGS, '--dir', up.dir], up.tokens)
    await writeFile(gate, '')
    const again = createNvidiaClient(restarted.url, up.tokens.trainer)
    const keptStatus = async () => (await again.get(`/rollout/task/${kept.task_id}`)).body.status
    await expect.poll(keptStatus, { timeout: 120_000, interval: 300 }).toBe('completed')

    const words: string[][] = []
    const made: string[][] = []
    for (const { task_id } of [mixed, early, kept]) {
      const { body } = await again.get(`/rollout/task/${task_id}`)
      const status = readStrictly('TaskStatus', body)
      expect(status.results).toHaveLength(4)
      expectAligned(status)
      words.push(status.results.map((result) => result.status).toSorted())
      made.push(status.results.flatMap(sampleStatuses).toSorted())
      const { body: listed } = await again.get(`/tasks/${task_id}/sessions`)
      expect(status.results.map(({ session_id }) => session_id)).toEqual(
        listed.sessions.map(({ session_id }: Json) => session_id),
      )
    }
    expect(words).toEqual([
      ['COMPLETED', 'COMPLETED', 'ERROR', 'TIMEOUT'],
      ['COMPLETED', 'COMPLETED', 'ERROR', 'ERROR'],
      ['COMPLETED', 'COMPLETED', 'COMPLETED', 'COMPLETED'],
    ])
    // The session that timed out is trained, the failed session is not, and the stopped sessions have no trace.
    expect(made[0]!.filter((word) => word === 'FAILED')).toHaveLength(1)
    expect(made[0]!.filter((word) => word === 'ABORTED')).toHaveLength(0)
    expect(made.map((group) => group.length)).toEqual([4, 2, 4])
    await expect
      .poll(() => new Set(listener.received.map(({ body }) => body.task_id)).size, { timeout: 30_000 })
      .toBe(3)
    for (const { body } of listener.received) readStrictly('TaskResult', body)
    const stopped = listener.received.find(({ body }) => body.task_id === early.task_id)!
    const flags = stopped.body.results.map(({ metadata }: Json) => metadata.early_stop_cancelled ?? false)
    expect(flags.toSorted()).toEqual([false, false, true, true])
  })
})
