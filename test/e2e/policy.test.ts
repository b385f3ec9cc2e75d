import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { startEngine, type Engine, type EngineOptions } from '@polar-rl/tiny-engine'
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import { createClient, type Client } from '../../src/client/client.ts'
import type { PauseMode } from '../../src/model/policy.ts'
import type { SessionResult } from '../../src/model/session.ts'
import type { Trace } from '../../src/model/trajectory.ts'
import { StageWidths } from '../../src/node/session/stages.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { copyDatabase } from '../support/database-template.ts'
import { shellTask } from '../support/node-stack.ts'

const SERVER_PROCESS = join(import.meta.dirname, '../support/server-process.ts')
const WORKER_PROCESS = join(import.meta.dirname, '../support/worker-process.ts')
/** Long enough that a busy machine loses no lease by mistake. */
const LEASE_MS = 10_000
const WAIT = { timeout: 120_000, interval: 50 }

type GenerationRecord = Parameters<Extract<EngineOptions['log'], Function>>[0]

/** Calls the model until the test writes the file `stop`. Fails if a stream is not complete. */
const AGENT = bashAgent(`
FIELDS='"stream":true,'
id="$SESSION_ID-$RANDOM$RANDOM"
n=0
until [ -e /control/stop ]; do
  n=$((n + 1))
  call "$id $n" > answer || exit 1
  grep -q '^HTTP/1.1 200' answer && grep -q 'DONE' answer || exit 1
done`)

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-policy-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

/** A server, nodes and an engine in separate processes; the test is the trainer, which updates the engine. */
class Cluster {
  readonly records: GenerationRecord[] = []
  readonly control = join(dir, 'control')
  readonly nodes = new Map<string, ChildProcess>()
  engine!: Engine
  url = ''
  #server: ChildProcess | undefined

  static async start(): Promise<Cluster> {
    const cluster = new Cluster()
    await mkdir(cluster.control)
    await copyDatabase(join(dir, 'database'))
    cluster.engine = await startEngine({
      script: { default: { tokens: 12, per_token_ms: 40 } },
      log: (record) => cluster.records.push(record),
    })
    onTestFinished(() => cluster.engine.close())
    await cluster.startServer()
    return cluster
  }

  get client(): Client {
    return createClient({ baseUrl: this.url })
  }

  async startServer(): Promise<void> {
    const port = this.url === '' ? 0 : Number(new URL(this.url).port)
    const options = {
      database: { dir: join(dir, 'database') },
      filesDir: join(dir, 'files'),
      listen: { host: '127.0.0.1', port },
      leaseMs: LEASE_MS,
    }
    const { child, line } = await startProcess(SERVER_PROCESS, options)
    this.#server = child
    this.url = (JSON.parse(line) as { url: string }).url
  }

  async killServer(): Promise<void> {
    await kill(this.#server!)
  }

  async startNode(nodeId: string, labels: string[] = []): Promise<void> {
    const widths = StageWidths.parse({ init: 2, ready: 0, run: 2 })
    const worker = { labels: ['harness:shell', 'runtime:bubblewrap', ...labels] }
    const options = { url: this.url, nodeId, dir: join(dir, nodeId), upstream: this.engine.url, widths, worker }
    const { child } = await startProcess(WORKER_PROCESS, options)
    this.nodes.set(nodeId, child)
  }

  async killNode(nodeId: string): Promise<void> {
    await kill(this.nodes.get(nodeId)!)
  }

  /** Submits sessions, and waits until they call the model. */
  async submit(taskId: string, samples: number, requires: string[] = []): Promise<void> {
    const runtime = { kwargs: { volumes: [`${this.control}:/control:ro`] } }
    const more = { task_id: taskId, num_samples: samples, builder: { strategy: 'per_request' }, runtime }
    const body = { ...shellTask(AGENT, { ...more, timeout_seconds: 900 }), requires }
    await this.client.submitTask({ body })
    await vi.waitFor(async () => expect(await this.callingSessions(taskId)).toBe(samples), WAIT)
  }

  /** Number of running sessions of a task that have completed a call. */
  async callingSessions(taskId: string): Promise<number> {
    const { sessions } = await this.client.listSessions({ query: { task_id: taskId } })
    return sessions.filter(({ progress }) => (progress?.calls ?? 0) > 0).length
  }

  async sendToEngine(path: string, body?: unknown): Promise<void> {
    const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body ?? {}) }
    const response = await fetch(`${this.engine.url}${path}`, init)
    expect(response.status, path).toBe(200)
  }

  /** Waits until calls that begin from now on have ended. */
  async untilCalls(count = 4): Promise<void> {
    const before = this.records.length
    await vi.waitFor(() => expect(this.records.length).toBeGreaterThan(before + count), WAIT)
  }

  setEngineVersion(version: number): Promise<void> {
    return this.sendToEngine('/update_weight_version', { new_version: String(version) })
  }

  /** Changes the weights as a trainer does, while sessions run. */
  async update(version: number, mode: PauseMode): Promise<void> {
    if (mode === 'drain') {
      await this.pause()
      await this.setEngineVersion(version)
      await this.client.putPolicy({ body: { version, resume: true } })
      return
    }
    await this.freezeStreams()
    const paused = await this.client.pausePolicy({ body: { mode } })
    expect(paused.nodes.every(({ confirmed, lost }) => confirmed || lost)).toBe(true)
    await this.client.putPolicy({ body: { version } })
    await this.setEngineVersion(version)
    await this.sendToEngine('/resume')
    await this.client.resumePolicy({ query: {} })
  }

  async pause(): Promise<void> {
    const paused = await this.client.pausePolicy({ body: { mode: 'drain' } })
    expect(paused).toMatchObject({ paused: true })
    expect(this.engine.runningCount).toBe(0)
  }

  /** Pauses the engine while it streams answers, which then continue with the new weights. */
  async freezeStreams(): Promise<void> {
    await vi.waitFor(async () => {
      expect(this.engine.runningCount).toBeGreaterThan(0)
      await this.sendToEngine('/pause?mode=keep')
      if (this.engine.runningCount > 0) return
      await this.sendToEngine('/resume')
      throw new Error('all streams had ended')
    }, WAIT)
  }

  async results(taskId: string): Promise<SessionResult[]> {
    for (;;) {
      const { status, results } = await this.client.getTask({ params: { task_id: taskId }, query: { wait: 20 } })
      if (status !== 'running') return results
    }
  }
}

async function startProcess(program: string, options: object): Promise<{ child: ChildProcess; line: string }> {
  const child = spawn(process.execPath, [program, JSON.stringify(options)], { stdio: ['ignore', 'pipe', 'inherit'] })
  onTestFinished(() => kill(child, 'SIGTERM'))
  const ended = once(child, 'exit').then(([code]) => {
    throw new Error(`${program} ended with ${code}`)
  })
  const [line] = (await Promise.race([once(createInterface({ input: child.stdout }), 'line'), ended])) as [string]
  ended.catch(() => {})
  return { child, line }
}

async function kill(child: ChildProcess, signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.kill(signal)
  // A second signal releases the leases of a node that drains.
  if (signal === 'SIGTERM') child.kill(signal)
  const force = setTimeout(() => child.kill('SIGKILL'), 20_000)
  await exited
  clearTimeout(force)
}

/** The version that sampled each token, from the log of the engine. */
function sampledVersions({ choices, weight_version, weight_changes = [] }: GenerationRecord): string[] {
  return choices[0]!.token_ids.map(
    (_, i) => weight_changes.findLast(({ from_token }) => from_token <= i)?.weight_version ?? weight_version,
  )
}

interface WireSpan {
  from: number
  provenance: string
  weight_version?: string
  newest_weight_version?: string
}

/** The oldest and newest possible version of each token, from the trace that a trainer reads. */
function stampedRanges({ response_ids, metadata }: Trace): (readonly [string, string])[] {
  const spans = (metadata['spans'] as WireSpan[]).filter(({ provenance }) => provenance === 'sampled')
  const start = spans[0]!.from
  return response_ids.map((_, i) => {
    const { weight_version: oldest = '', newest_weight_version: newest = oldest } = spans.findLast(
      ({ from }) => from - start <= i,
    )!
    return [oldest, newest] as const
  })
}

describe('pause, update and resume through the server', { timeout: 600_000 }, () => {
  test('no call fails, and every token is stamped with the version that sampled it', async () => {
    const cluster = await Cluster.start()
    await cluster.setEngineVersion(1)
    expect(await cluster.client.putPolicy({ body: { version: 1 } })).toMatchObject({ version: 1, nodes: [] })
    await Promise.all([cluster.startNode('n1'), cluster.startNode('n2')])
    await cluster.submit('load', 4)
    const modes: PauseMode[] = ['drain', 'hold', 'drain', 'hold']
    for (const [i, mode] of modes.entries()) {
      await cluster.update(i + 2, mode)
      await cluster.untilCalls()
    }

    // A node that joins during a pause is paused, and has the version before it sends a call.
    await cluster.pause()
    await cluster.startNode('n3', ['third'])
    await cluster.setEngineVersion(6)
    const set = await cluster.client.putPolicy({ body: { version: 6 } })
    expect(set.nodes).toMatchObject(
      ['n1', 'n2', 'n3'].map((node_id) => ({ node_id, version: 6, in_flight: 0, confirmed: true })),
    )
    const held = cluster.records.length
    await cluster.client.resumePolicy({ query: {} })
    await cluster.submit('third', 1, ['third'])
    expect(cluster.records.length).toBeGreaterThan(held)

    // A server that is killed during a pause: gateways stay paused, and the next server knows the pause.
    await cluster.pause()
    const atPause = cluster.records.length
    await cluster.killServer()
    await cluster.startServer()
    expect(await cluster.client.getPolicy()).toMatchObject({ version: 6, paused: true, mode: 'drain' })
    await cluster.pause()
    expect(cluster.records.length).toBe(atPause)
    await cluster.setEngineVersion(7)
    await cluster.client.putPolicy({ body: { version: 7, resume: true } })
    await cluster.untilCalls()

    // A node that is killed during a pause is not waited for once its lease is over; its sessions run elsewhere.
    await cluster.pause()
    await cluster.killNode('n2')
    await cluster.setEngineVersion(8)
    const { nodes } = await cluster.client.putPolicy({ body: { version: 8 } })
    expect(nodes.find(({ node_id }) => node_id === 'n2')).toMatchObject({ lost: true, version: 7 })
    await cluster.startNode('n2')
    await cluster.client.resumePolicy({ query: {} })
    await vi.waitFor(async () => {
      const state = await cluster.client.getPolicy()
      expect(state.nodes).toMatchObject(['n1', 'n2', 'n3'].map(() => ({ version: 8, confirmed: true, lost: false })))
    }, WAIT)
    await cluster.untilCalls()
    await cluster.update(9, 'drain')
    await cluster.untilCalls()
    await writeFile(join(cluster.control, 'stop'), '')

    const results = [...(await cluster.results('load')), ...(await cluster.results('third'))]
    expect(results.map(({ status, error }) => ({ status, error }))).toEqual(
      results.map(() => ({ status: 'COMPLETED', error: null })),
    )
    expect(results).toHaveLength(5)
    expect(results.at(-1)).toMatchObject({ node_id: 'n3' })
    const byPrompt = Map.groupBy(cluster.records, ({ prompt_token_ids }) => prompt_token_ids.join())
    const wrong: unknown[] = []
    const versions = new Set<string>()
    let changed = 0
    for (const trace of results.flatMap(({ trajectory }) => trajectory.traces)) {
      const [record, ...others] = byPrompt.get(trace.prompt_ids.join()) ?? []
      expect(others).toEqual([])
      expect(trace.response_ids).toEqual(record?.choices[0]?.token_ids)
      const sampled = sampledVersions(record!)
      const stamped = stampedRanges(trace)
      for (const version of sampled) versions.add(version)
      if (record!.weight_changes !== undefined) changed += 1
      const isExact = record!.weight_changes === undefined
      for (const [i, version] of sampled.entries()) {
        const [oldest, newest] = stamped[i]!
        const isRight = isExact ? oldest === version : oldest <= version && version <= newest
        if (!isRight) wrong.push({ i, version, oldest, newest, record: record!.request_id })
      }
    }
    expect(wrong).toEqual([])
    // Some streams continued over a change of the weights.
    expect(changed).toBeGreaterThan(0)
    // Sessions of the killed node began again, so only versions since then are certain.
    expect(versions).toEqual(new Set([...versions, '7', '8', '9']))
  })
})
