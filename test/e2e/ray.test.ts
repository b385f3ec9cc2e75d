import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest'
import { type Client, createClient } from '../../src/client/client.ts'
import { SCRIPTED } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { CliProcess, POLAR } from '../support/cli-process.ts'
import { copyDatabase } from '../support/database-template.ts'
import { shellTask } from '../support/node-stack.ts'
import { pythonEnvironment } from '../support/python-environment.ts'
import { RayCluster } from '../support/ray-cluster.ts'

const root = join(import.meta.dirname, '../..')
const { python, install } = pythonEnvironment('ray', 'ray-requirements.txt')
const WAIT = { timeout: 120_000, interval: 200 }

/** Why these tests cannot run. */
let missing: string | undefined
let dir: string
let client: Client
let env: NodeJS.ProcessEnv
const owned = new AsyncDisposableStack()
afterAll(() => owned.disposeAsync())

beforeAll(async () => {
  missing = install()
  if (missing !== undefined) return
  dir = await mkdtemp(join(tmpdir(), 'polar-ray-'))
  owned.defer(() => rm(dir, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 }))
  const cluster = await RayCluster.start(join(dirname(python), 'ray'), join(dir, 'r'), 2)
  if (typeof cluster === 'string') {
    missing = cluster
    return
  }
  owned.use(cluster)
  await copyDatabase(join(dir, 'data/database'))
  const server = owned.use(await CliProcess.start(['server', '--port', '0', '--dir', join(dir, 'data')], dir))
  const tokens = JSON.parse(await readFile(join(dir, 'data/tokens.json'), 'utf8')) as Record<string, string>
  await writeFile(join(dir, 'node.token'), tokens['node']!)
  client = createClient({ baseUrl: server.ready.url, token: tokens['trainer']! })
  env = {
    ...process.env,
    PYTHONPATH: join(root, 'clients/python/src'),
    POLAR_SERVER_URL: server.ready.url,
    POLAR_TOKEN: tokens['trainer'],
    RAY_ADDRESS: cluster.address,
  }
}, 600_000)

/** Starts `examples/ray/run.py` with two nodes. */
function startJob(samples: number): ChildProcess {
  const words = ['--samples', String(samples), '--token-file', join(dir, 'node.token'), '--data', join(dir, 'nodes')]
  const flags = ['--', '--runtime', 'local', '--allow-path', join(root, 'examples'), '--run', '2', ...SCRIPTED]
  const args = [join(root, 'examples/ray/run.py'), ...words, '--program', POLAR.join(' '), ...flags]
  const job = spawn(python, args, { cwd: dir, env, stdio: ['ignore', 'pipe', 'ignore'] })
  onTestFinished(() => void job.kill('SIGKILL'))
  return job
}

/** The lines that the job prints. */
async function* linesOf(job: ChildProcess): AsyncGenerator<Record<string, unknown>> {
  for await (const line of createInterface({ input: job.stdout! })) yield JSON.parse(line) as Record<string, unknown>
}

const nodeIds = async (): Promise<string[]> => (await client.listNodes()).map(({ node_id }) => node_id)

test('two nodes in a placement group of Ray run the sessions of a task and leave with the job', async ({ skip }) => {
  if (missing !== undefined) skip(`Ray cannot be installed or does not start: ${missing}`)
  const job = startJob(4)
  const ended = once(job, 'exit')
  const lines = await Array.fromAsync(linesOf(job))
  expect(await ended).toEqual([0, null])
  expect(lines[0]).toEqual({ joined: ['ray-0', 'ray-1'] })
  expect(lines[2]).toMatchObject({ rewards: [1, 1, 1, 1] })
  const sessions = lines[2]!['sessions'] as Record<string, number>
  expect(Object.keys(sessions).filter((id) => !id.startsWith('ray-'))).toEqual([])
  expect(await nodeIds()).toEqual([])
})

test('nodes of a killed job finish their sessions and leave', async ({ skip }) => {
  if (missing !== undefined) skip(`Ray cannot be installed or does not start: ${missing}`)
  const gate = join(dir, 'gate')
  const agent = bashAgent(`call hello > answer; until [ -e ${gate} ]; do sleep 0.1; done`)
  const body = { ...shellTask(agent), task_id: 'gated', num_samples: 2 }
  await client.submitTask({ body, query: { unrunnable: 'queue' } })
  const job = startJob(1)
  const ended = once(job, 'exit')
  const sessions = async () => (await client.listSessions({ query: { task_id: 'gated' } })).sessions
  await expect.poll(async () => (await sessions()).map(({ status }) => status), WAIT).toEqual(['RUNNING', 'RUNNING'])
  job.kill('SIGKILL')
  await ended
  // A node without sessions leaves at once.
  const areDraining = async () => (await client.listNodes()).every(({ draining }) => draining)
  await expect.poll(areDraining, WAIT).toBe(true)
  expect(await nodeIds()).not.toEqual([])
  await writeFile(gate, '')
  await expect.poll(nodeIds, WAIT).toEqual([])
  const done = await sessions()
  expect(done.map(({ status, attempt }) => ({ status, attempt }))).toEqual([
    { status: 'COMPLETED', attempt: 1 },
    { status: 'COMPLETED', attempt: 1 },
  ])
})
