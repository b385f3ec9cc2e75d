import { expect, test } from 'vitest'
import { RolloutError } from '../../../model/failure.ts'
import type { SessionOrder } from '../../../model/session-order.ts'
import { RuntimeSpec, TaskRequest } from '../../../model/task.ts'
import type { RuntimeCapabilities, SandboxSpec } from '../runtimes/runtime.ts'
import { backendOf, LEASE_MS, toSandboxSpec, type SandboxSpecOptions } from './sandbox-spec.ts'

const able: RuntimeCapabilities = {
  isolatesFiles: true,
  isolatesProcesses: true,
  networks: ['none', 'allow', 'open'],
  limits: ['cpus', 'memoryMb', 'pids', 'diskMb'],
  images: 'optional',
  supportsSnapshots: true,
}
/** Like `local`: the machine's network, no limits. */
const unable: RuntimeCapabilities = { ...able, networks: ['open'], limits: [] }

const parts: SandboxSpecOptions = { role: 'agent', nodeId: 'node-1', mounts: [], now: 1000 }

function orderOf(runtime?: Record<string, unknown>): SessionOrder {
  const task = {
    task_id: 'task',
    instruction: '',
    agent: { harness: 'pi' },
    ...(runtime === undefined ? {} : { runtime }),
  }
  return { schemaVersion: 1, sessionId: 'ses_1', attempt: 1, task: TaskRequest.parse(task) }
}

function specOf(
  runtime?: Record<string, unknown>,
  { capabilities = able, ...more }: Partial<SandboxSpecOptions> & { capabilities?: RuntimeCapabilities } = {},
): SandboxSpec {
  return toSandboxSpec(orderOf(runtime), { kind: 'box', capabilities }, { ...parts, ...more })
}

function codeOf(call: () => unknown): string {
  try {
    call()
  } catch (error) {
    if (error instanceof RolloutError) return error.code
  }
  return 'nothing thrown'
}

test('a task without settings gets a workdir, a limit of processes, no network, and a lease', () => {
  expect(specOf()).toEqual({
    id: expect.stringMatching(/^agent-[0-9a-f-]{36}$/),
    workdir: '/workspace',
    folders: ['/polar/session', '/polar/session/artifacts', '/polar/session/logs', '/polar/session/logs/agent'],
    env: {
      SESSION_DIR: '/polar/session',
      ARTIFACTS_DIR: '/polar/session/artifacts',
      LOGS_DIR: '/polar/session/logs',
      AGENT_LOG_DIR: '/polar/session/logs/agent',
    },
    limits: { pids: 4096 },
    network: { kind: 'none' },
    mounts: [],
    labels: { node: 'node-1', session: 'ses_1', task: 'task', role: 'agent' },
    leaseUntil: 1000 + LEASE_MS,
  })
})

test('two sandboxes of the same session never have the same id', () => {
  expect(specOf().id).not.toBe(specOf().id)
})

test.each([
  [undefined, able, { kind: 'none' }],
  [undefined, unable, { kind: 'open' }],
  [{ allow_internet: false }, able, { kind: 'none' }],
  [{ allow_internet: true }, able, { kind: 'open' }],
  [{ allow_hosts: ['pypi.org'] }, able, { kind: 'allow', hosts: ['pypi.org'] }],
  [{ allow_hosts: ['pypi.org'], allow_internet: true }, able, { kind: 'allow', hosts: ['pypi.org'] }],
  [{ allow_hosts: [] }, able, { kind: 'allow', hosts: [] }],
  [{ network: 'host' }, able, { kind: 'open' }],
  [{ network: 'bridge' }, able, { kind: 'open' }],
  [{ network: 'none' }, able, { kind: 'none' }],
  [{ network: '' }, able, { kind: 'none' }],
  [{ network: 'host', allow_internet: false }, able, { kind: 'none' }],
  [{ network: 'none', allow_internet: true }, able, { kind: 'open' }],
])('the network of %j', (runtime, capabilities, network) => {
  expect(specOf(runtime, { capabilities }).network).toEqual(network)
})

test.each([{ allow_internet: false }, { allow_hosts: ['pypi.org'] }])(
  'a network that the runtime cannot keep is refused: %j',
  (runtime) => {
    expect(codeOf(() => specOf(runtime, { capabilities: unable }))).toBe('runtime.unsupported')
    expect(() => specOf(runtime, { capabilities: unable })).toThrow('The runtime box supports the networks open only')
  },
)

test('a task without a memory limit gets the default limit plus its disk limit', () => {
  expect(specOf({}, { defaultMemoryMb: 2000 }).limits).toEqual({ pids: 4096, memoryMb: 2000 })
  expect(specOf({ storage_mb: 500 }, { defaultMemoryMb: 2000 }).limits).toMatchObject({ memoryMb: 2500, diskMb: 500 })
  expect(specOf({ memory_mb: 64, storage_mb: 500 }, { defaultMemoryMb: 2000 }).limits).toMatchObject({ memoryMb: 64 })
  expect(specOf({}, { defaultMemoryMb: 2000, capabilities: unable }).limits).toEqual({})
})

test('limits are those of the task', () => {
  const runtime = { cpus: 0.5, memory_mb: 512, storage_mb: 1024, pids: 50 }
  expect(specOf(runtime).limits).toEqual({ cpus: 0.5, memoryMb: 512, diskMb: 1024, pids: 50 })
})

test('limits that cannot be enforced are rejected in one message; unset limits are left out', () => {
  const runtime = { cpus: 1, memory_mb: 512 }
  expect(codeOf(() => specOf(runtime, { capabilities: unable }))).toBe('runtime.unsupported')
  expect(() => specOf(runtime, { capabilities: unable })).toThrow('cannot limit cpus, memoryMb')
  expect(specOf({}, { capabilities: unable }).limits).toEqual({})
})

test("volumes are mounted after the node's mounts, writable unless read-only is set", () => {
  const own = { source: '/harness', target: '/polar/harness', isReadOnly: true }
  const runtime = { kwargs: { volumes: ['/data:/data', '/cache:/cache:ro', '/scratch:/scratch:rw'] } }
  expect(specOf(runtime, { mounts: [own] }).mounts).toEqual([
    own,
    { source: '/data', target: '/data', isReadOnly: false },
    { source: '/cache', target: '/cache', isReadOnly: true },
    { source: '/scratch', target: '/scratch', isReadOnly: false },
  ])
})

test.each([
  [{ allow_internet: true }, [{ source: '/proxy', target: '/polar/proxy', isReadOnly: true }]],
  [{ allow_internet: false }, []],
  [{}, []],
])('internet_volumes are mounted if the network is open: %j', (runtime, mounts) => {
  expect(specOf({ ...runtime, internet_volumes: ['/proxy:/polar/proxy:ro'] }).mounts).toEqual(mounts)
})

test('a step that names the path of the session folder is rejected if files are not isolated', () => {
  const open: RuntimeCapabilities = { ...unable, isolatesFiles: false }
  const prepare = [
    { type: 'exec', command: 'true' },
    { type: 'exec', command: 'rm -rf /polar/session/workspace' },
  ]
  expect(() => specOf({ prepare }, { capabilities: open })).toThrow('has no /polar/session, which prepare step 2 names')
  expect(codeOf(() => specOf({ prepare: [prepare[0]] }, { capabilities: open }))).toBe('nothing thrown')
  expect(codeOf(() => specOf({ prepare }))).toBe('nothing thrown')
})

test.each<unknown>(['data:/data', '/data', '/data:data', '/data:/data:rx', '/a:/b:ro:z', 7])(
  'a volume that is none is refused: %j',
  (volume) => {
    expect(codeOf(() => specOf({ kwargs: { volumes: [volume] } }))).toBe('config.invalid')
  },
)

test('volumes that are no list are rejected', () => {
  expect(codeOf(() => specOf({ kwargs: { volumes: '/data:/data' } }))).toBe('config.invalid')
})

test('image, workdir, environment and socket are passed on; a long task id is truncated in the label', () => {
  const socket = { port: 8080, accept: () => {} }
  const order = orderOf({ image: 'python:3.13', workdir: '/testbed', env: { A: '1', LOGS_DIR: '/logs' } })
  order.task.task_id = 'x'.repeat(300)
  const spec = toSandboxSpec(order, { kind: 'box', capabilities: able }, { ...parts, role: 'grader', socket })
  expect(spec).toMatchObject({ image: 'python:3.13', workdir: '/testbed', env: { A: '1', LOGS_DIR: '/logs' }, socket })
  expect(spec.id).toMatch(/^grader-/)
  expect(spec.labels['task']).toHaveLength(200)
})

test.each([
  [null, undefined],
  [{}, undefined],
  [{ image: 'python:3.13' }, 'docker'],
  [{ image: '/images/a.sif', backend: 'apptainer' }, 'apptainer'],
  [{ backend: 'local' }, 'local'],
])('backendOf(%j) is %s', (runtime, kind) => {
  expect(backendOf(runtime === null ? null : RuntimeSpec.parse(runtime))).toBe(kind)
})
