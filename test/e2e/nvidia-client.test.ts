import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { SCRIPTED } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { createNvidiaClient, type Json, listenForCallbacks, type NvidiaClient } from '../support/nvidia-client.ts'
import { startUp, type UpProcess } from '../support/up-process.ts'

let up: UpProcess
let client: NvidiaClient
/** Client of a gateway node, which uses the node token. */
let gateway: NvidiaClient
beforeAll(async () => {
  up = await startUp(SCRIPTED)
  client = createNvidiaClient(up.url, up.tokens.trainer)
  gateway = createNvidiaClient(up.url, up.tokens.node)
}, 180_000)
afterAll(() => up?.[Symbol.asyncDispose]())

const callsModel = bashAgent('call "What is two and two?" > answer.txt')
const isNumber = expect.any(Number) as number
const isText = expect.any(String) as string

let count = 0
function taskOf(command: string, more: object = {}): { task_id: string } & Record<string, Json> {
  return {
    task_id: `polar-slime-${++count}-0`,
    instruction: 'Say what two and two is.',
    num_samples: 1,
    timeout_seconds: 60.0,
    agent: { harness: 'shell', model_name: 'policy', custom_shell: { command, cwd: null, env: null } },
    builder: { strategy: 'prefix_merging', config: {} },
    evaluator: { strategy: 'session_completed', config: {}, env: {}, refresh_runtime: false },
    metadata: { rollout_id: 7 },
    ...more,
  }
}

const TIMINGS = ['register_to_init_queue_ms', 'init_ms', 'run_ms', 'postrun_ms']

function expectResult(result: Json, task_id: string, status: string): void {
  expect(result).toMatchObject({
    session_id: expect.stringMatching(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/),
    task_id,
    status,
    trajectory: { status, metadata: expect.any(Object) },
    timing: expect.any(Object),
    metadata: expect.any(Object),
  })
}

function expectTrace(trace: Json): void {
  expect(trace).toMatchObject({
    prompt_ids: expect.any(Array),
    response_ids: expect.any(Array),
    loss_mask: expect.any(Array),
    prompt_messages: expect.arrayContaining([expect.objectContaining({ role: 'user' })]),
    response_messages: expect.arrayContaining([expect.objectContaining({ role: 'assistant' })]),
    finish_reason: expect.stringMatching(/^(stop|length|tool_calls)$/),
    metadata: expect.any(Object),
  })
  expect(trace.prompt_ids.length).toBeGreaterThan(0)
  expect(trace.response_ids.length).toBeGreaterThan(0)
  expect(trace.loss_mask).toHaveLength(trace.response_ids.length)
  expect(new Set(trace.loss_mask)).toEqual(new Set([1]))
  expect(trace.response_logprobs).toHaveLength(trace.response_ids.length)
  expect(trace.response_logprobs.every((logprob: number) => logprob <= 0)).toBe(true)
}

describe('a client of NVIDIA Polar', { timeout: 120_000 }, () => {
  test('submits a group, polls its status, and receives the same result by callback', async () => {
    await using listener = await listenForCallbacks()
    const task = taskOf(callsModel, {
      num_samples: 3,
      callback_url: listener.url,
      metadata: { rollout_id: 7, note: 'mine' },
    })
    const submitted = await client.post('/rollout/task/submit', task)
    expect(submitted).toEqual({ status: 200, body: { task_id: task.task_id, status: 'running' } })
    const status = await client.submitAndPoll(task)
    expect(Object.keys(status).toSorted()).toEqual(
      [
        'completed_sessions',
        'polar_status',
        'result_paths',
        'results',
        'status',
        'task_id',
        'total_sessions',
      ].toSorted(),
    )
    expect(status).toMatchObject({
      task_id: task.task_id,
      status: 'completed',
      total_sessions: 3,
      completed_sessions: 3,
      result_paths: expect.any(Array),
    })
    expect(status.results).toHaveLength(3)
    expect(new Set(status.results.map(({ session_id }: Json) => session_id)).size).toBe(3)
    const { body: nodes } = await client.get('/nodes')
    for (const result of status.results) {
      expectResult(result, task.task_id, 'COMPLETED')
      expect(result.node_id).toBe(nodes[0].node_id)
      expect(result.error ?? null).toBeNull()
      expect(result.trajectory.error ?? null).toBeNull()
      for (const name of TIMINGS) expect(result.timing[name], name).toEqual(isNumber)
      expect(result.metadata).toMatchObject({ rollout_id: 7, note: 'mine' })
      expect(result.trajectory.traces).toHaveLength(1)
      expectTrace(result.trajectory.traces[0])
      expect(result.trajectory.traces[0].reward).toBe(1)
    }
    await expect.poll(() => listener.received.length, { timeout: 10_000 }).toBe(1)
    const { total_sessions: _, completed_sessions: __, ...taskResult } = status
    expect(listener.received[0]!.body).toEqual(taskResult)
  })

  test('a session that times out has status TIMEOUT and a trace of its calls', async () => {
    const hangs = bashAgent('call "What is two and two?" > answer.txt; sleep 1000')
    const status = await client.submitAndPoll(taskOf(hangs, { timeout_seconds: 3 }))
    expect(status).toMatchObject({ status: 'completed', total_sessions: 1, completed_sessions: 1 })
    expectResult(status.results[0], status.task_id, 'TIMEOUT')
    expect(status.results[0].error).toEqual(isText)
    expectTrace(status.results[0].trajectory.traces[0])
  })

  test('metadata.agent_timeout limits the run time of the agent alone', async () => {
    const hangs = bashAgent('call "What is two and two?" > answer.txt; sleep 1000')
    const task = taskOf(hangs, { timeout_seconds: 600, metadata: { agent_timeout: 3.0 } })
    const status = await client.submitAndPoll(task)
    expectResult(status.results[0], status.task_id, 'TIMEOUT')
    const wrong = await client.post('/rollout/task/submit', taskOf(callsModel, { metadata: { agent_timeout: -1 } }))
    expect(wrong.status).toBe(422)
  })

  test('a session whose agent fails has status ERROR, an error text and its trace', async () => {
    const fails = `${callsModel}; echo it broke >&2; exit 3`
    const status = await client.submitAndPoll(taskOf(fails))
    expectResult(status.results[0], status.task_id, 'ERROR')
    expect(status.results[0].error).toEqual(isText)
    expect(status.results[0].trajectory.error).toEqual(isText)
    expectTrace(status.results[0].trajectory.traces[0])
  })

  test('the per_request builder returns one trace per call', async () => {
    const twice = bashAgent('call "One?" > a.txt; call "Two?" > b.txt')
    const status = await client.submitAndPoll(taskOf(twice, { builder: { strategy: 'per_request' } }))
    expect(status.results[0].trajectory.traces).toHaveLength(2)
    status.results[0].trajectory.traces.forEach(expectTrace)
  })

  test('a cancelled task has status cancelled and a result for every session', async () => {
    const task = taskOf('sleep 1000', { num_samples: 2 })
    await client.post('/rollout/task/submit', task)
    const cancelled = await client.delete(`/rollout/task/${task.task_id}`)
    expect(cancelled.status).toBe(200)
    expect(cancelled.body.status).toMatch(/^cancell(ing|ed)$/)
    await expect
      .poll(async () => (await client.get(`/rollout/task/${task.task_id}`)).body.status, { timeout: 10_000 })
      .toBe('cancelled')
    const { body } = await client.get(`/rollout/task/${task.task_id}`)
    expect(body).toMatchObject({ total_sessions: 2, completed_sessions: 2 })
    for (const result of body.results) {
      expectResult(result, task.task_id, 'ERROR')
      expect(result.polar_status).toBe('CANCELLED')
      expect(result.error).toEqual(isText)
      expect(result.trajectory.traces).toEqual([])
    }
    expect(body.results).toHaveLength(2)
    expect(await client.delete(`/rollout/task/${task.task_id}`)).toMatchObject({ body: { status: 'cancelled' } })
  })

  test('a task id can be cancelled before it is submitted; the submission is then rejected', async () => {
    const task = taskOf(callsModel)
    const path = `/rollout/task/${task.task_id}`
    expect(await client.delete(path)).toMatchObject({ status: 404, body: { detail: isText } })
    const early = await client.delete(`${path}?register_if_missing=true`)
    expect(early).toMatchObject({ status: 200, body: { task_id: task.task_id, status: 'cancelled', results: [] } })
    expect(await client.post('/rollout/task/submit', task)).toMatchObject({ status: 409, body: { detail: isText } })
  })

  test('early_stop_min_usable_sessions cancels the remaining sessions', async () => {
    // Only the session that creates the folder ends quickly.
    const command = `if mkdir /tmp/first-${up.process.pid} 2>/dev/null; then ${callsModel}; else sleep 1000; fi`
    const task = taskOf(command, {
      num_samples: 3,
      early_stop_min_usable_sessions: 1,
      dispatch_priority: 100,
      runtime: { backend: 'local', image: null },
    })
    const status = await client.submitAndPoll(task)
    expect(status).toMatchObject({ status: 'completed', total_sessions: 3, completed_sessions: 3 })
    const words = status.results.map((result: Json) => result.status).toSorted()
    expect(words).toEqual(['COMPLETED', 'ERROR', 'ERROR'])
    const stopped = status.results.filter(({ metadata }: Json) => metadata.early_stop_cancelled === true)
    expect(stopped.map(({ polar_status }: Json) => polar_status)).toEqual(['CANCELLED', 'CANCELLED'])
  })

  test('a task whose sessions all failed because of infrastructure has status completed, as in NVIDIA Polar, and polar_status failed', async () => {
    const runtime = { backend: 'bubblewrap', image: '/no/such/root' }
    const status = await client.submitAndPoll(taskOf(callsModel, { runtime }))
    expect(status).toMatchObject({ status: 'completed', polar_status: 'failed', completed_sessions: 1 })
    expectResult(status.results[0], status.task_id, 'ERROR')
    expect(status.results[0].trajectory.traces).toEqual([])
  })

  test('submitting the id of a running task again returns that task for the same body and 409 for another body', async () => {
    const task = taskOf('sleep 1000')
    await client.post('/rollout/task/submit', task)
    const again = await client.post('/rollout/task/submit', task)
    expect(again).toMatchObject({ status: 200, body: { task_id: task.task_id, status: 'running' } })
    const other = await client.post('/rollout/task/submit', { ...task, instruction: 'Something else.' })
    expect(other).toMatchObject({ status: 409, body: { detail: isText } })
    await client.delete(`/rollout/task/${task.task_id}`)
  })

  test('an invalid task is rejected with a FastAPI error body; an unknown task or node returns 404', async () => {
    const wrong = await client.post('/rollout/task/submit', { task_id: 'x', num_samples: 0, surprise: true })
    expect(wrong.status).toBe(422)
    expect(wrong.body.detail).toEqual(
      expect.arrayContaining([{ loc: ['body', 'instruction'], msg: isText, type: isText }]),
    )
    for (const path of ['/rollout/task/nobody', '/tasks/nobody/sessions', '/nodes/nobody']) {
      expect(await client.get(path), path).toMatchObject({ status: 404, body: { detail: isText } })
    }
  })

  test('tasks and their sessions are listed with all their fields', async () => {
    const since = Date.now() / 1000 - 5
    const task = taskOf(callsModel, { num_samples: 2 })
    await client.submitAndPoll(task)
    const { body } = await client.get(`/tasks?status=completed&harness=shell&since=${since}&limit=1`)
    expect(body.tasks).toEqual([
      expect.objectContaining({
        task_id: task.task_id,
        status: 'completed',
        harness: 'shell',
        model: 'policy',
        num_samples: 2,
        completed_sessions: 2,
        errored_sessions: 0,
        mean_reward: 1,
        mean_traces: 1,
        mean_completions: 1,
        source: 'live',
      }),
    ])
    expect(body.tasks[0].created_at).toBeGreaterThan(since)
    expect(body.tasks[0].updated_at).toBeGreaterThanOrEqual(body.tasks[0].created_at)
    expect((await client.get('/tasks?status=running&limit=1000')).body.tasks).toEqual([])
    expect((await client.get('/tasks?limit=1001')).status).toBe(422)
    const sessions = (await client.get(`/tasks/${task.task_id}/sessions`)).body
    expect(sessions.task_id).toBe(task.task_id)
    expect(sessions.sessions).toHaveLength(2)
    for (const session of sessions.sessions) {
      expect(session).toMatchObject({
        session_id: isText,
        task_id: task.task_id,
        status: 'COMPLETED',
        node_id: isText,
        reward: 1,
        error: null,
      })
      for (const name of TIMINGS) expect(session.timing[name], name).toEqual(isNumber)
    }
  })

  test('/health, /rollout/status and /nodes return the fields of NVIDIA Polar', async () => {
    expect(await client.get('/health')).toEqual({ status: 200, body: { status: 'ok', nodes: 1 } })
    const { body: nodes } = await client.get('/nodes')
    expect(nodes).toHaveLength(1)
    expect(nodes[0]).toMatchObject({
      node_id: isText,
      gateway_url: expect.stringMatching(/^https?:\/\//),
      max_init_workers: isNumber,
      max_run_workers: isNumber,
      max_postrun_workers: isNumber,
      heartbeat_interval_seconds: isNumber,
      metrics: {
        init_queue_depth: isNumber,
        init_inflight: isNumber,
        ready_depth: isNumber,
        run_inflight: isNumber,
        postrun_queue_depth: isNumber,
        postrun_inflight: isNumber,
      },
      dispatch_reservations: isNumber,
      healthy: true,
      draining: false,
      last_heartbeat: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
    })
    expect((await client.get(`/nodes/${nodes[0].node_id}`)).body.node_id).toBe(nodes[0].node_id)
    const task = taskOf('sleep 1000', { num_samples: 2 })
    await client.post('/rollout/task/submit', task)
    const { body: status } = await client.get('/rollout/status')
    expect(Object.keys(status).toSorted()).toEqual(['nodes', 'pipeline', 'tasks'])
    expect(status.tasks[task.task_id]).toBe('running')
    expect(status.pipeline.pending_sessions).toEqual(isNumber)
    expect(status.nodes.nodes.map((node: Json) => node.node_id)).toEqual([nodes[0].node_id])
    await client.delete(`/rollout/task/${task.task_id}`)
  })

  test('a gateway registers, sends heartbeats and is drained; results of unknown sessions are rejected', async () => {
    const registration = {
      node_id: 'gateway-7',
      gateway_url: 'http://127.0.0.1:8107',
      max_init_workers: 2,
      max_run_workers: 2,
      max_postrun_workers: 2,
    }
    expect(await gateway.post('/nodes/gateway-7/heartbeat', { metrics: {} })).toMatchObject({ status: 404 })
    const registered = await gateway.post('/nodes/register', registration)
    expect(registered).toMatchObject({
      status: 200,
      body: { ...registration, heartbeat_interval_seconds: 30, healthy: true, draining: false },
    })
    const metrics = { run_inflight: 1 }
    expect(await gateway.post('/nodes/gateway-7/heartbeat', { metrics })).toMatchObject({ body: { metrics } })
    expect(await gateway.delete('/nodes/gateway-7')).toMatchObject({ status: 200, body: { draining: true } })
    expect((await client.get('/nodes')).body.map((node: Json) => node.node_id)).not.toContain('gateway-7')
    const forged = {
      session_id: 'sk-polar-0b8e7a3e',
      task_id: 'polar-slime-1-0',
      status: 'COMPLETED',
      trajectory: { status: 'COMPLETED', metadata: {}, traces: [], error: null },
      timing: {},
      node_id: 'gateway-7',
      error: null,
      metadata: {},
    }
    expect(await gateway.post('/callbacks/session_result', forged)).toMatchObject({ status: 404 })
  })

  test('the event stream sends hello first, then every state change in order, and a ping when idle', async () => {
    const ended = new AbortController()
    const seen: { type: string; ts: number; data: Json }[] = []
    const reading = (async () => {
      for await (const event of client.events(ended.signal)) seen.push(event)
    })().catch(() => {})
    await expect.poll(() => seen.length, { timeout: 5000 }).toBeGreaterThan(0)
    expect(seen[0]).toMatchObject({ type: 'hello', ts: isNumber, data: expect.any(Object) })
    const slow = bashAgent('call "What is two and two?" > answer.txt; sleep 3')
    const task = taskOf(slow, { num_samples: 2, evaluator: { strategy: 'command', config: { command: 'sleep 3' } } })
    const status = await client.submitAndPoll(task)
    const ids: string[] = status.results.map(({ session_id }: Json) => session_id)
    const isMine = ({ data }: { data: Json }): boolean => data.task_id === task.task_id
    await expect.poll(() => seen.filter(isMine).map(({ type }) => type), { timeout: 5000 }).toContain('task.completed')
    const mine = seen.filter(isMine)
    expect(mine[0]!.type).toBe('task.created')
    expect(mine.at(-1)!.type).toBe('task.completed')
    expect(mine.map(({ type }) => type)).toContain('task.updated')
    const states = mine.filter(({ type }) => type === 'session.state_changed').map(({ data }) => data)
    expect(new Set(states.map((data) => data.session_id))).toEqual(new Set(ids))
    const all = ['DISPATCHING', 'INITIALIZING', 'READY', 'RUNNING', 'POST_RUN', 'BUILDING', 'EVALUATING', 'COMPLETED']
    for (const id of ids) {
      const words = states.filter((data) => data.session_id === id).map((data) => data.status as string)
      // Short states may pass between two reports of the node. Reported states are in order.
      expect(words).toEqual(all.filter((word) => words.includes(word)))
      for (const word of ['DISPATCHING', 'RUNNING', 'EVALUATING', 'COMPLETED']) expect(words).toContain(word)
    }
    await expect.poll(() => seen.map(({ type }) => type), { timeout: 20_000, interval: 500 }).toContain('ping')
    ended.abort()
    await reading
  })
})
