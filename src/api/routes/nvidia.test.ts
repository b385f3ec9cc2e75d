import { describe, expect, test } from 'vitest'
import { SessionStatus } from '../../model/session.ts'
import { ErrorBody } from '../error-body.ts'
import { type Handlers, mountRoutes } from '../mount.ts'
import { type Routes, routes } from './index.ts'
import { RolloutError } from '../../model/failure.ts'

/** The bodies below are those of NVIDIA Polar's clients. */
const fullTask = {
  task_id: 'polar-slime-12-3',
  instruction: 'Resolve the issue.',
  num_samples: 16,
  timeout_seconds: 2400.0,
  dispatch_priority: 10,
  early_stop_min_usable_sessions: 12,
  runtime: {
    backend: 'apptainer',
    image: '/images/swe.sif',
    prepare: [
      { type: 'upload_file', source: '/host/a.patch', target: '/tmp/a.patch' },
      { type: 'upload_dir', source: '/host/dir', target: '/opt/dir' },
      {
        type: 'exec',
        command: 'git apply /tmp/a.patch',
        cwd: '/testbed',
        env: { LANG: 'C' },
        max_attempts: 3,
        retry_backoff_seconds: 1.5,
      },
    ],
    eval_prepare: null,
    env: { PATH: '/usr/bin' },
    network: 'host',
    workdir: '/testbed',
    cpus: 4,
    memory_mb: 8192,
    storage_mb: null,
    gpus: 0,
    allow_internet: true,
    import_path: null,
    kwargs: { volumes: ['/data:/data:ro'] },
  },
  agent: {
    harness: 'codex',
    import_path: null,
    model_name: 'policy',
    settings: { reasoning_effort: 'high' },
    env: {},
    mcp_servers: [{ name: 'files', transport: 'stdio', command: 'mcp-files', args: ['--root', '/'], url: null }],
    skills_path: null,
    custom_shell: null,
  },
  builder: { strategy: 'prefix_merging', config: {} },
  evaluator: { strategy: 'swebench', config: { dataset: 'verified' }, env: {}, refresh_runtime: true },
  callback_url: 'http://10.0.0.2:40001/callback/task_result',
  metadata: { rollout_id: 12, agent_timeout: 1800.0 },
}

const result = {
  session_id: 'sk-polar-0b8e7a3e-5f0c-4c58-8a5f-0c3a9f6f3c11',
  task_id: 'polar-slime-12-3',
  status: 'COMPLETED',
  trajectory: {
    status: 'COMPLETED',
    metadata: { builder: 'prefix_merging' },
    traces: [
      {
        prompt_ids: [1, 2, 3],
        response_ids: [4, 5],
        loss_mask: [1, 0],
        prompt_messages: [{ role: 'user', content: 'hi' }],
        response_messages: [{ role: 'assistant', content: 'ho' }],
        tools: null,
        finish_reason: 'stop',
        response_logprobs: [-0.5, 0.0],
        reward: 1.0,
        metadata: {},
      },
    ],
    error: null,
  },
  timing: { register_to_init_queue_ms: 0.5, init_ms: 1.0, run_ms: 2.0, postrun_ms: 3.0, runtime_exec_count: 4 },
  node_id: 'node-0',
  error: null,
  metadata: {},
}

const seen: Record<string, unknown> = {}
const handlers = Object.fromEntries(
  Object.keys(routes).map((name) => [
    name,
    async (call: unknown) => {
      seen[name] = call
      throw new RolloutError('request.conflict', 'It is still running.')
    },
  ]),
) as unknown as Handlers<Routes, undefined>
const app = mountRoutes({ table: routes, handlers, authorize: () => undefined, onBug: () => {} })

async function ask(method: string, path: string, body?: unknown): Promise<Response> {
  const headers = { 'content-type': 'application/json' }
  return app.request(path, body === undefined ? { method } : { method, headers, body: JSON.stringify(body) })
}

describe("NVIDIA Polar's contract", () => {
  test.each([
    ['GET', '/health', 'getHealth'],
    ['POST', '/rollout/task/submit', 'submitTask', fullTask],
    ['POST', '/rollout/task/submit', 'submitTask', { task_id: 't', instruction: '', agent: { harness: 'pi' } }],
    ['GET', '/rollout/task/polar-slime-12-3', 'getTask'],
    ['DELETE', '/rollout/task/polar-slime-12-3', 'cancelTask'],
    ['DELETE', '/rollout/task/polar-slime-12-3?register_if_missing=true', 'cancelTask'],
    ['GET', '/rollout/status', 'getStatus'],
    ['POST', '/nodes/node-0/heartbeat', 'heartbeatNode', {}],
    ['POST', '/nodes/node-0/heartbeat', 'heartbeatNode', { metrics: { run_inflight: 3 } }],
    ['GET', '/nodes', 'listNodes'],
    ['GET', '/nodes/node-0', 'getNode'],
    ['DELETE', '/nodes/node-0', 'removeNode'],
    ['POST', '/callbacks/session_result', 'postSessionResult', result],
    ['GET', '/tasks', 'listTasks'],
    ['GET', '/tasks?status=running&harness=codex&since=1780000000.25&limit=1000', 'listTasks'],
    ['GET', '/tasks?status=&harness=&since=&limit=200', 'listTasks'],
    ['GET', '/tasks/polar-slime-12-3/sessions', 'listTaskSessions'],
    ['GET', '/events', 'streamEvents'],
  ])('%s %s is %s', async (method, path, name, body?: unknown) => {
    delete seen[name]
    const response = await ask(method, path, body)
    expect(await response.json()).toMatchObject({ detail: 'It is still running.' })
    expect(seen).toHaveProperty(name)
  })

  test('unknown fields, null, and numbers as text are accepted with warnings, and refused in strict mode', async () => {
    const body = { task_id: 't', instruction: 'go', agent: { harness: 'pi' }, num_samples: '2', rollout_hint: 1 }
    await ask('POST', '/rollout/task/submit', body)
    expect(seen['submitTask']).toMatchObject({
      body: { num_samples: 2 },
      warnings: [expect.stringContaining('num_samples'), expect.stringContaining('rollout_hint')],
    })
    const headers = { 'content-type': 'application/json', 'x-polar-strict': 'true' }
    const strict = await app.request('/rollout/task/submit', { method: 'POST', headers, body: JSON.stringify(body) })
    expect(strict.status).toBe(422)
  })

  test('fields that change what a session does are translated, or refused with a reason', async () => {
    const task = { task_id: 't', instruction: 'go', agent: { harness: 'pi' } }
    const runtime = { backend: 'apptainer', image: '/a.sif', direct_exec_init_command: null }
    const volumes = { internet_volumes: ['/proxy:/proxy'], kwargs: { volumes: ['/data:/data:ro'] } }
    await ask('POST', '/rollout/task/submit', { ...task, runtime: { ...runtime, ...volumes } })
    expect(seen['submitTask']).toMatchObject({
      body: { runtime: { kwargs: { volumes: ['/data:/data:ro', '/proxy:/proxy'] } } },
      warnings: [],
    })
    await ask('POST', '/rollout/task/submit', { ...task, runtime: { ...runtime, ...volumes, allow_internet: false } })
    expect(seen['submitTask']).toMatchObject({
      body: { runtime: { kwargs: { volumes: ['/data:/data:ro'] } } },
      warnings: [expect.stringContaining('internet_volumes')],
    })
    const init = { ...runtime, direct_exec_init_command: 'start-proxy' }
    const refused = await ask('POST', '/rollout/task/submit', { ...task, runtime: init })
    expect([refused.status, ErrorBody.parse(await refused.json()).detail]).toEqual([
      422,
      expect.stringContaining('direct_exec_init_command is not supported'),
    ])
    await ask('POST', '/rollout/task/submit', { ...task, runtime: { ...init, backend: 'docker' } })
    expect(seen['submitTask']).toMatchObject({ warnings: [expect.stringContaining('direct_exec_init_command')] })
  })

  test('a task has NVIDIA’s defaults', async () => {
    await ask('POST', '/rollout/task/submit', { task_id: 't', instruction: 'go', agent: { harness: 'pi' } })
    expect(seen['submitTask']).toMatchObject({
      body: {
        num_samples: 1,
        timeout_seconds: 600,
        dispatch_priority: 0,
        builder: { strategy: 'per_request', config: {} },
        metadata: {},
        agent: { settings: {}, env: {}, mcp_servers: [] },
      },
    })
  })

  test.each([0, -1, '5', true])('an agent_timeout of %j is refused, as in NVIDIA Polar', async (agent_timeout) => {
    const response = await ask('POST', '/rollout/task/submit', { ...fullTask, metadata: { agent_timeout } })
    expect(ErrorBody.parse(await response.json()).error.param).toBe('body.metadata.agent_timeout')
  })

  test('a node has NVIDIA’s defaults', async () => {
    const workers = { max_init_workers: 8, max_run_workers: 8, max_postrun_workers: 8 }
    await ask('POST', '/nodes/register', { node_id: 'node-0', gateway_url: 'http://10.0.0.5:8100', ...workers })
    expect(seen['registerNode']).toMatchObject({ body: { heartbeat_interval_seconds: 30 } })
    await ask('POST', '/nodes/node-0/heartbeat', {})
    expect(seen['heartbeatNode']).toMatchObject({ body: { metrics: { init_queue_depth: 0, postrun_inflight: 0 } } })
  })

  test('a list of tasks has 200 by default, and at most 1000', async () => {
    await ask('GET', '/tasks')
    expect(seen['listTasks']).toMatchObject({ query: { limit: 200 } })
    expect((await ask('GET', '/tasks?limit=1001')).status).toBe(422)
    expect((await ask('GET', '/tasks?limit=0')).status).toBe(422)
  })

  test('a 409 has a sentence in detail, a 422 a list of problems', async () => {
    const conflict = await ask('POST', '/rollout/task/submit', fullTask)
    expect([conflict.status, ErrorBody.parse(await conflict.json()).detail]).toEqual([409, 'It is still running.'])
    const wrong = await ask('POST', '/rollout/task/submit', { task_id: 't', instruction: 'go' })
    expect(wrong.status).toBe(422)
    expect(ErrorBody.parse(await wrong.json()).detail).toEqual([
      { loc: ['body', 'agent'], msg: expect.any(String), type: 'missing' },
    ])
  })

  test('responses have NVIDIA’s fields and values', () => {
    expect(routes.getTask.answer.schema.shape.status.options).toEqual(
      expect.arrayContaining(['running', 'completed', 'failed', 'cancelling', 'cancelled']),
    )
    const words = 'REGISTERED INITIALIZING READY RUNNING POST_RUN BUILDING EVALUATING COMPLETED ERROR TIMEOUT'
    expect(SessionStatus.options).toEqual(expect.arrayContaining(words.split(' ')))
    expect(Object.keys(routes.getTask.answer.schema.shape)).toEqual(
      expect.arrayContaining(['task_id', 'status', 'total_sessions', 'completed_sessions', 'results', 'result_paths']),
    )
    const task = 'task_id status harness model num_samples completed_sessions errored_sessions mean_reward mean_traces'
    expect(Object.keys(routes.listTasks.answer.schema.shape.tasks.element.shape)).toEqual(
      expect.arrayContaining([...task.split(' '), 'mean_completions', 'created_at', 'updated_at', 'source']),
    )
    expect(Object.keys(routes.listTaskSessions.answer.schema.shape.sessions.element.shape)).toEqual(
      expect.arrayContaining(['session_id', 'task_id', 'status', 'node_id', 'reward', 'timing', 'error']),
    )
    const node = 'node_id gateway_url max_init_workers max_run_workers max_postrun_workers heartbeat_interval_seconds'
    expect(Object.keys(routes.getNode.answer.schema.shape)).toEqual(
      expect.arrayContaining([
        ...node.split(' '),
        'metrics',
        'dispatch_reservations',
        'healthy',
        'draining',
        'last_heartbeat',
      ]),
    )
  })
})
