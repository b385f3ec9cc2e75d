import { describe, expect, test } from 'vitest'
import { toHarnessName } from './strategy-names.ts'
import { AgentSpec, EvaluatorSpec, TaskRequest } from './task.ts'

const task = { task_id: 't', instruction: '', agent: { harness: 'pi' } }

function messagesOf(value: unknown): string[] {
  const parsed = TaskRequest.safeParse(value)
  return parsed.success ? [] : parsed.error.issues.map(({ path, message }) => `${path.join('.')}: ${message}`)
}

describe('names of NVIDIA Polar', () => {
  test('openhands_sdk means openhands, and other names are unchanged', () => {
    expect(AgentSpec.parse({ harness: 'openhands_sdk' }).harness).toBe('openhands')
    expect(toHarnessName('constructor')).toBe('constructor')
    expect(AgentSpec.parse({ harness: 'my_own' }).harness).toBe('my_own')
  })

  test.each(['openclaw', 'hermes', 'spilot_router', 'controller_v3', 'vanillux2'])(
    'the task schema rejects the harness %s and lists the supported names',
    (harness) => {
      const [message, ...more] = messagesOf({ ...task, agent: { harness } })
      expect(more).toEqual([])
      expect(message).toContain(`agent.harness: "${harness}" is not supported`)
      expect(message).toContain('Supported: codex, claude_code')
    },
  )

  test('the task schema rejects the builder router_policy and the evaluators of routers', () => {
    expect(messagesOf({ ...task, builder: { strategy: 'router_policy' } })).toEqual([
      expect.stringContaining('builder.strategy: "router_policy" is not supported'),
    ])
    expect(EvaluatorSpec.safeParse({ strategy: 'spilot_harbor' }).success).toBe(false)
    expect(messagesOf({ ...task, evaluator: { strategy: 'harbor_rubric' } })).toEqual([
      expect.stringContaining('Use weighted'),
    ])
  })
})

describe('steps with every field written out', () => {
  const nulls = { source: null, target: null, command: null, cwd: null, env: null }
  const retries = { max_attempts: 1, retry_backoff_seconds: 0 }

  test('null is accepted in the fields of other steps', () => {
    const prepare = [
      { ...nulls, ...retries, type: 'exec', command: 'true' },
      { ...nulls, ...retries, type: 'upload_file', source: '/a', target: '/b' },
      { ...nulls, ...retries, type: 'upload_dir', source: '/a', target: '/b' },
    ]
    expect(messagesOf({ ...task, runtime: { image: 'x', prepare } })).toEqual([])
  })

  test('a value in a field of another step is rejected', () => {
    const upload = { type: 'upload_file', source: '/a', target: '/b' }
    for (const wrong of [{ command: 'true' }, { max_attempts: 2 }, { env: {} }])
      expect(messagesOf({ ...task, runtime: { prepare: [{ ...upload, ...wrong }] } })).toHaveLength(1)
    const exec = { type: 'exec', command: 'true', source: '/a' }
    expect(messagesOf({ ...task, runtime: { prepare: [exec] } })).toHaveLength(1)
  })
})

test('runtime.network accepts only host, bridge and none', () => {
  expect(messagesOf({ ...task, runtime: { network: 'my-net' } })).toEqual([
    'runtime.network: must be host, bridge or none; a sandbox joins no other network',
  ])
})
