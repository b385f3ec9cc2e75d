import { describe, expect, test } from 'vitest'
import { GatewayNodeInfo } from './node.ts'
import { EvalResult } from './reward.ts'
import { isTerminal, SessionResult, SessionStatus } from './session.ts'
import { PrepareAction, TaskRequest, TaskStatus } from './task.ts'
import { Trace } from './trajectory.ts'

const task = { task_id: 't-1', instruction: 'fix it', agent: { harness: 'codex' } }

describe('TaskRequest', () => {
  test('applies the defaults of the contract', () => {
    expect(TaskRequest.parse(task)).toEqual({
      ...task,
      num_samples: 1,
      timeout_seconds: 600,
      agent: { harness: 'codex', settings: {}, env: {}, mcp_servers: [] },
      builder: { strategy: 'per_request', config: {} },
      dispatch_priority: 0,
      metadata: {},
    })
  })

  test('accepts every field of a trainer', () => {
    const full = {
      ...task,
      num_samples: 8,
      timeout_seconds: 1800.5,
      runtime: {
        backend: 'apptainer',
        image: 'swe.sif',
        prepare: [
          { type: 'upload_file', source: 'a', target: 'b' },
          { type: 'exec', command: 'make', cwd: '/w', max_attempts: 3 },
        ],
        eval_prepare: null,
        env: { A: 'b' },
        network: 'host',
        cpus: 2,
        memory_mb: 2048,
        allow_internet: false,
        kwargs: { volumes: ['a:b:ro'] },
      },
      agent: {
        harness: 'claude_code',
        model_name: 'm',
        mcp_servers: [{ name: 'fs', transport: 'stdio', command: 'mcp-fs', args: ['--root'] }],
      },
      evaluator: { strategy: 'swebench', config: { instance: 'x' }, refresh_runtime: true },
      callback_url: 'http://127.0.0.1:9000/done',
      early_stop_min_usable_sessions: 4,
      metadata: { group_id: 7 },
    }
    expect(TaskRequest.parse(full)).toMatchObject(full)
  })

  test.each([
    ['a misspelt key', { ...task, num_sample: 2 }, 'num_sample'],
    ['no harness', { ...task, agent: {} }, 'exactly one of harness and import_path'],
    [
      'two harnesses',
      { ...task, agent: { harness: 'codex', import_path: 'a:B' } },
      'exactly one of harness and import_path',
    ],
    ['shell without its command', { ...task, agent: { harness: 'shell' } }, 'custom_shell'],
    ['zero samples', { ...task, num_samples: 0 }, 'num_samples'],
    ['an early stop beyond the samples', { ...task, early_stop_min_usable_sessions: 2 }, 'must not exceed num_samples'],
    [
      'a stdio server without command',
      { ...task, agent: { harness: 'pi', mcp_servers: [{ name: 'x', transport: 'stdio' }] } },
      'needs a command',
    ],
  ])('refuses %s and says so', (_, body, words) => {
    const result = TaskRequest.safeParse(body)
    expect(result.success).toBe(false)
    expect(JSON.stringify(result.error?.issues)).toContain(words)
  })
})

describe('results', () => {
  const trace: Trace = {
    prompt_ids: [1],
    response_ids: [2, 3],
    loss_mask: [1, 0],
    prompt_messages: [],
    response_messages: [],
    response_logprobs: [-0.5, null],
    metadata: {},
  }

  test('a trace whose columns differ in length is rejected', () => {
    expect(Trace.safeParse(trace).success).toBe(true)
    expect(Trace.safeParse({ ...trace, loss_mask: [1] }).success).toBe(false)
    expect(Trace.safeParse({ ...trace, response_logprobs: [-0.5] }).success).toBe(false)
    expect(Trace.safeParse({ ...trace, loss_mask: [1, 2] }).success).toBe(false)
  })

  test('a task status with a session result round-trips', () => {
    const result: SessionResult = {
      session_id: 'sk-polar-1',
      task_id: 't-1',
      status: 'COMPLETED',
      trajectory: { status: 'COMPLETED', metadata: {}, traces: [trace] },
      timing: { run_ms: 12 },
      metadata: {},
    }
    const status = {
      task_id: 't-1',
      status: 'running',
      results: [result],
      result_paths: [],
      total_sessions: 2,
      completed_sessions: 1,
    }
    expect(TaskStatus.parse(JSON.parse(JSON.stringify(status)))).toEqual(status)
    expect(SessionResult.safeParse({ ...result, session_id: '../x' }).success).toBe(false)
  })

  test('isTerminal() is true for four statuses', () => {
    expect(SessionStatus.options.filter(isTerminal)).toEqual(['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'])
  })

  test('a reward is a finite number or absent, never a boolean', () => {
    expect(EvalResult.safeParse({ outcome_reward: 0.5, trace_rewards: [null, 1] }).success).toBe(true)
    for (const outcome_reward of [Number.NaN, Infinity, true, '1']) {
      expect(EvalResult.safeParse({ outcome_reward }).success).toBe(false)
    }
  })

  test('a node’s record has the fields nodes and dashboards read', () => {
    const info = {
      node_id: 'n1',
      gateway_url: 'http://127.0.0.1:8100',
      max_init_workers: 1,
      max_run_workers: 2,
      max_postrun_workers: 1,
      heartbeat_interval_seconds: 30,
      metrics: {
        init_queue_depth: 0,
        init_inflight: 0,
        ready_depth: 1,
        run_inflight: 0,
        postrun_queue_depth: 0,
        postrun_inflight: 0,
      },
      dispatch_reservations: 0,
      healthy: true,
      draining: false,
      last_heartbeat: '2026-06-01T12:00:00Z',
    }
    expect(GatewayNodeInfo.parse(info)).toEqual(info)
  })
})

const commit = '0123456789abcdef0123456789abcdef01234567'

test.each(['https://host.org/a/b.git', 'https://[::1]:8443/b', 'ssh://git@host:22/b', 'file:///srv/b', '/srv/b'])(
  'a checkout accepts the source %s',
  (repository) => {
    const action = { type: 'checkout', repository, commit, target: '/testbed' }
    expect(PrepareAction.parse(action)).toEqual(action)
  },
)

test.each([
  ['another transport', { repository: 'ext::sh -c id' }],
  ['another transport behind a URL', { repository: 'http://host.org/b' }],
  ['a user name and password', { repository: 'https://me:key@host.org/b' }],
  ['a token as user name', { repository: 'https://key@host.org/b' }],
  ['a password for ssh', { repository: 'ssh://me:key@host.org/b' }],
  ['a host that programs parse differently', { repository: 'https://host.org\\.evil.org/b' }],
  ['an option', { repository: '--upload-pack=id' }],
  ['a host that is an option', { repository: 'ssh://-oProxyCommand=id/b' }],
  ['a user name that is an option', { repository: 'ssh://-l@host/b' }],
  ['a path that is an option', { repository: 'ssh://host/-b' }],
  ['a relative path', { repository: '../b' }],
  ['the short form of ssh', { repository: 'git@host:b' }],
  ['a line break', { repository: '/srv/b\nc' }],
  ['a branch', { commit: 'main' }],
  ['part of a commit', { commit: '0123456' }],
  ['no history', { depth: 0 }],
])('a checkout with %s is refused', (_case, wrong) => {
  const action = { type: 'checkout', repository: '/srv/b', commit, target: '/testbed', ...wrong }
  expect(PrepareAction.safeParse(action).success).toBe(false)
})
