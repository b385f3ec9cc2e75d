import { existsSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { exampleNode, NodeInfo } from '../../api/routes/node-routes.ts'
import type { Client } from '../../client/client.ts'
import { Config } from '../../config/config.ts'
import { systemClock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import { takeDown } from './slurm-down.ts'
import type { SlurmPrograms } from './slurm-programs.ts'
import { readRecord } from './slurm-record.ts'
import type { SlurmTask } from './slurm-tasks.ts'
import { submitNodes, type SlurmDeps } from './slurm-up.ts'

const SECRET = 'polar_node_secret'
let dir: string
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'polar-cycle-'))
})
afterEach(() => rmSync(dir, { recursive: true, force: true }))

/** Fake of Slurm's programs: tasks run as soon as they are submitted, and end when they are cancelled. */
class FakeSlurm implements SlurmPrograms {
  tasks: SlurmTask[] = []
  readonly scripts: string[] = []
  readonly cancelled: string[] = []

  async submit(script: string): Promise<string> {
    const text = readFileSync(script, 'utf8')
    const count = Number(/--array=0-(\d+)/.exec(text)?.[1]) + 1
    const jobId = String(this.scripts.push(text))
    for (let task = 0; task < count; task += 1)
      this.tasks.push({ jobId, task, state: 'RUNNING', machine: 'n1', timeLeft: '1:00', reason: 'None' })
    return jobId
  }

  async list(jobIds: readonly string[]): Promise<SlurmTask[]> {
    return this.tasks.filter(({ jobId }) => jobIds.includes(jobId))
  }

  async cancel(ids: readonly string[]): Promise<void> {
    this.cancelled.push(...ids)
    this.end(...ids)
  }

  end(...ids: readonly string[]): void {
    this.tasks = this.tasks.filter(({ jobId, task }) => !ids.includes(`${jobId}_${task}`))
  }
}

/** A server that lists the node of every task; a drained node ends. */
function serverOf(slurm: FakeSlurm, { isAway = false }: { isAway?: boolean } = {}): Client {
  const away = async (): Promise<never> => {
    throw new RolloutError('server.unreachable', 'The server is away.')
  }
  const listNodes = async (): Promise<NodeInfo[]> =>
    slurm.tasks.map(({ jobId, task }) => NodeInfo.parse({ ...exampleNode, node_id: `polar-${jobId}-${task}` }))
  const drainNode = async ({ params }: { params: { node_id: string } }): Promise<NodeInfo> => {
    const [, job, task] = params.node_id.split('-')
    slurm.end(`${job}_${task}`)
    return NodeInfo.parse({ ...exampleNode, draining: true })
  }
  return (isAway ? { listNodes: away, drainNode: away } : { listNodes, drainNode }) as unknown as Client
}

function depsOf(programs: SlurmPrograms): SlurmDeps {
  return { programs, clock: systemClock, signal: new AbortController().signal, say: () => {} }
}

async function bringUp(slurm: FakeSlurm, nodes: number): Promise<unknown> {
  const config = Config.parse({ cluster: { slurm: { nodes } }, data: join(dir, 'data') })
  const plan = {
    name: 'polar',
    config,
    workDir: join(dir, 'work'),
    polar: ['polar'],
    environment: [],
    server: 'http://server:8080',
    token: SECRET,
    moreArguments: [],
  }
  return submitNodes(plan, { ...depsOf(slurm), client: serverOf(slurm) })
}

const down = (slurm: FakeSlurm, client: Client | undefined, graceMs = 60_000): Promise<unknown> =>
  takeDown({ data: join(dir, 'data'), graceMs, keepsServer: false }, { ...depsOf(slurm), client })

test('submitNodes() submits only the missing nodes', async () => {
  const slurm = new FakeSlurm()
  await bringUp(slurm, 3)
  expect(await bringUp(slurm, 3)).toBeUndefined()
  slurm.end('1_1')
  await bringUp(slurm, 5)
  expect(slurm.tasks.map(({ jobId, task }) => `${jobId}_${task}`)).toEqual(['1_0', '1_2', '2_0', '2_1', '2_2'])
  expect((await readRecord(join(dir, 'data'))).jobs).toMatchObject([
    { jobId: '1', tasks: 3 },
    { jobId: '2', tasks: 3 },
  ])
})

test('submitNodes() passes the token in a file that only its owner can read', async () => {
  const slurm = new FakeSlurm()
  await bringUp(slurm, 1)
  const [script] = slurm.scripts
  expect(script).not.toContain(SECRET)
  const file = /'([^']*configs[^']*)'/.exec(script!)![1]!
  const written = readFileSync(file, 'utf8')
  expect(written).not.toContain(SECRET)
  const { node } = Config.parse(JSON.parse(written))
  expect(node).toMatchObject({ server: 'http://server:8080', token_file: join(dir, 'work/secrets/node.token') })
  expect(readFileSync(node.token_file!, 'utf8').trim()).toBe(SECRET)
  for (const path of [node.token_file!, file]) expect(statSync(path).mode & 0o777).toBe(0o600)
})

test('takeDown() drains running nodes and cancels waiting ones', async () => {
  const slurm = new FakeSlurm()
  await bringUp(slurm, 3)
  slurm.tasks[2]!.state = 'PENDING'
  expect(await down(slurm, serverOf(slurm))).toEqual({ drained: 2, cancelled: 1 })
  expect(slurm.cancelled).toEqual(['1_2'])
  expect(await readRecord(join(dir, 'data'))).toEqual({ schemaVersion: 1, jobs: [] })
  expect(existsSync(join(dir, 'work/stop-1'))).toBe(false)
  expect(await down(slurm, serverOf(slurm))).toEqual({ drained: 0, cancelled: 0 })
})

test.each([
  ['the server is unreachable', true, 60_000],
  ['the grace period is 0', false, 0],
])('takeDown() cancels everything when %s', async (_, isAway, graceMs) => {
  const slurm = new FakeSlurm()
  await bringUp(slurm, 2)
  expect(await down(slurm, serverOf(slurm, { isAway }), graceMs)).toEqual({ drained: 0, cancelled: 2 })
  expect(slurm.cancelled).toEqual(['1_0', '1_1'])
})

test('takeDown() can be repeated after an interruption', async () => {
  const slurm = new FakeSlurm()
  await bringUp(slurm, 2)
  const broken: SlurmPrograms = {
    submit: (script) => slurm.submit(script),
    list: (ids) => slurm.list(ids),
    cancel: async () => {
      throw new RolloutError('server.failed', 'scancel failed.')
    },
  }
  const client = serverOf(slurm, { isAway: true })
  const plan = { data: join(dir, 'data'), graceMs: 0, keepsServer: false }
  await expect(takeDown(plan, { ...depsOf(broken), client })).rejects.toThrow('scancel failed')
  // Nodes that reach their time limit meanwhile are not requeued.
  expect(existsSync(join(dir, 'work/stop-1'))).toBe(true)
  expect(await down(slurm, client)).toEqual({ drained: 0, cancelled: 2 })
})
