import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, beforeAll, expect, test } from 'vitest'
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

let missing: string | undefined
let dir: string
let server: CliProcess
let cluster: RayCluster
let client: Client
let env: NodeJS.ProcessEnv

beforeAll(async () => {
  missing = install()
  if (missing !== undefined) return
  dir = await mkdtemp(join(tmpdir(), 'polar-ray-'))
  await copyDatabase(join(dir, 'data/database'))
  server = await CliProcess.start(['server', '--port', '0', '--dir', join(dir, 'data')], dir)
  const tokens = JSON.parse(await readFile(join(dir, 'data/tokens.json'), 'utf8')) as Record<string, string>
  await writeFile(join(dir, 'node.token'), tokens['node']!)
  client = createClient({ baseUrl: server.ready.url, token: tokens['trainer']! })
  env = {
    ...process.env,
    PATH: `${dirname(python)}:${process.env['PATH']}`,
    PYTHONPATH: join(root, 'clients/python/src'),
    POLAR_SERVER_URL: server.ready.url,
    POLAR_TOKEN: tokens['trainer'],
  }
  cluster = await RayCluster.start(join(dirname(python), 'ray'), join(dir, 'r'), 2)
  env['RAY_ADDRESS'] = cluster.address
}, 600_000)

afterAll(async () => {
  if (missing !== undefined) return
  await cluster?.[Symbol.asyncDispose]()
  await server?.[Symbol.asyncDispose]()
  await rm(dir, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 })
})

/** Starts `examples/ray/run.py` with two nodes. */
function startJob(samples: number): ChildProcess {
  const words = ['--samples', String(samples), '--token-file', join(dir, 'node.token'), '--data', join(dir, 'nodes')]
  const flags = ['--', '--runtime', 'local', '--allow-path', join(root, 'examples'), '--run', '1', ...SCRIPTED]
  const args = [join(root, 'examples/ray/run.py'), ...words, '--program', POLAR.join(' '), ...flags]
  return spawn(python, args, { cwd: dir, env, stdio: ['ignore', 'pipe', 'inherit'] })
}

/** The lines that the job prints. */
async function* linesOf(job: ChildProcess): AsyncGenerator<Record<string, unknown>> {
  for await (const line of createInterface({ input: job.stdout! })) yield JSON.parse(line) as Record<string, unknown>
}

const nodeIds = async (): Promise<string[]> => (await client.listNodes()).map(({ node_id }) => node_id)

test('two nodes in a placement group of Ray run the sessions of a task and leave with the job', async ({ skip }) => {
  if (missing !== undefined) skip(`Ray cannot be installed here: ${missing}`)
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
  if (missing !== undefined) skip(`Ray cannot be installed here: ${missing}`)
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
  await expect.poll(async () => (await client.listNodes()).map(({ draining }) => draining), WAIT).toEqual([true, true])
  await writeFile(gate, '')
  await expect.poll(nodeIds, WAIT).toEqual([])
  const done = await sessions()
  expect(done.map(({ status, attempt }) => ({ status, attempt }))).toEqual([
    { status: 'COMPLETED', attempt: 1 },
    { status: 'COMPLETED', attempt: 1 },
  ])
  expect(new Set(done.map(({ node_id }) => node_id))).toEqual(new Set(['ray-0', 'ray-1']))
})
