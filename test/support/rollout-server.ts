import { createHash } from 'node:crypto'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { zstdCompressSync } from 'node:zlib'
import pino from 'pino'
import { type Client, type ClientOptions, createClient } from '../../src/client/client.ts'
import { uploadFile } from '../../src/client/upload.ts'
import { systemClock } from '../../src/lib/async/clock.ts'
import { randomIds } from '../../src/lib/random-ids.ts'
import type { SessionOrder } from '../../src/model/session-order.ts'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import type { SessionResult } from '../../src/model/session.ts'
import { RolloutServer, type ServerOptions } from '../../src/server/server.ts'
import { copyDatabase } from './database-template.ts'

export interface TestServer extends AsyncDisposable {
  server: RolloutServer
  client: Client
  /** Client without retries. */
  strict: Client
  /** Returns a client with another token, or none. */
  as(options: Partial<ClientOptions>): Client
  /** Log records of level `warn` and above. */
  problems: { level: number; msg: string; err?: { message: string } }[]
  dir: string
}

/** Starts a server on a free port with a new or given database. Every answer is validated by its schema. */
export async function startTestServer(options: Partial<ServerOptions> = {}): Promise<TestServer> {
  const dir = await mkdtemp(join(tmpdir(), 'polar-server-'))
  if (options.database === undefined) await copyDatabase(join(dir, 'database'))
  const problems: TestServer['problems'] = []
  const write = (line: string): void => void problems.push(JSON.parse(line) as TestServer['problems'][number])
  const server = await RolloutServer.start({
    database: { dir: join(dir, 'database') },
    filesDir: join(dir, 'files'),
    listen: { host: '127.0.0.1', port: 0 },
    access: { tokens: [], isOpen: true },
    callbacks: { allowedHosts: ['loopback'] },
    clock: systemClock,
    monotonic: () => performance.now(),
    ids: randomIds(Date.now),
    logger: pino({ level: 'warn' }, { write }),
    checkAnswers: true,
    ...options,
  })
  const as = (more: Partial<ClientOptions>): Client => createClient({ baseUrl: server.url, ...more })
  return {
    server,
    client: as({}),
    strict: as({ attempts: 1 }),
    as,
    problems,
    dir,
    async [Symbol.asyncDispose]() {
      await server[Symbol.asyncDispose]()
      await rm(dir, { recursive: true, force: true })
    },
  }
}

/** Returns a task that no test runs in a sandbox. */
export function makeTask(id: string, samples = 1) {
  const agent = { harness: 'shell', custom_shell: { command: 'true' } }
  return { task_id: id, instruction: 'Do it.', num_samples: samples, agent }
}

export const registration = {
  gateway_url: 'http://127.0.0.1:8100',
  max_init_workers: 4,
  max_run_workers: 4,
  max_postrun_workers: 4,
}

/** A node that runs nothing, but sends all requests of a node. */
export class TestNode {
  readonly client: Client
  readonly id: string
  readonly params: { node_id: string }

  constructor(client: Client, id: string) {
    this.client = client
    this.id = id
    this.params = { node_id: id }
  }

  static async join(client: Client, id: string, labels: string[] = [], bootId = 'boot'): Promise<TestNode> {
    const node = new TestNode(client, id)
    await node.join(labels, bootId)
    return node
  }

  /** Joins as a new process, which replaces the previous process of the node. */
  async join(labels: string[] = [], bootId = 'boot', holding: { session_id: string; attempt: number }[] = []) {
    const body = { ...registration, labels, version: '0.0.0', boot_id: bootId, holding }
    const answer = await this.client.joinNode({ params: this.params, body })
    if (answer.kind === 'joined') return answer
    const again = await this.client.joinNode({ params: this.params, body: { ...body, replaces: answer.boot_id } })
    if (again.kind === 'taken') throw new Error('somebody was faster')
    return again
  }

  async lease(freeSlots = 1, wait = 0, signal?: AbortSignal): Promise<SessionOrder[]> {
    const body = { free_slots: freeSlots, wait }
    const { orders } = await this.client.leaseSessions({ params: this.params, body, signal })
    return orders.map(({ order }) => order)
  }

  /** Uploads the result and completes the session. */
  async complete(
    order: SessionOrder,
    more: Partial<SessionOutcome> & { result?: Partial<SessionResult>; text?: string } = {},
  ) {
    const { result: moreOfResult, text, ...moreOfOutcome } = more
    const outcome = makeOutcome(order, this.id, moreOfOutcome)
    const upload = await this.upload(order, text ?? JSON.stringify(makeResult(outcome, moreOfResult)))
    return this.client.completeSession({ params: this.params, body: { outcome, result_upload_id: upload } })
  }

  /** Completes the session with an inline result. */
  async completeInline(order: SessionOrder, more: Partial<SessionOutcome> & { result?: Partial<SessionResult> } = {}) {
    const { result: moreOfResult, ...moreOfOutcome } = more
    const outcome = makeOutcome(order, this.id, moreOfOutcome)
    const bytes = zstdCompressSync(JSON.stringify(makeResult(outcome, moreOfResult)))
    return this.client.completeSession({ params: this.params, body: { outcome, result: bytes.toString('base64') } })
  }

  async upload({ sessionId, attempt }: SessionOrder, text: string | Uint8Array): Promise<string> {
    const bytes = typeof text === 'string' ? zstdCompressSync(text) : text
    const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`
    const read = async (offset: number, length: number) => Uint8Array.from(bytes.subarray(offset, offset + length))
    const source = { nodeId: this.id, sessionId, attempt, bytes: bytes.length, digest, read, partBytes: 1024 * 1024 }
    return (await uploadFile(this.client, source)).upload_id
  }

  /** Leases and completes sessions until none is left. Returns their number. */
  async drain(): Promise<number> {
    for (let done = 0; ;) {
      const orders = await this.lease(16)
      if (orders.length === 0) return done
      await Promise.all(orders.map((order) => this.complete(order)))
      done += orders.length
    }
  }
}

export function makeOutcome(order: SessionOrder, nodeId: string, more: Partial<SessionOutcome> = {}): SessionOutcome {
  return {
    schemaVersion: 1,
    sessionId: order.sessionId,
    taskId: order.task.task_id,
    attempt: order.attempt,
    nodeId,
    status: 'COMPLETED',
    grade: { outcome_reward: 1, metadata: {} },
    counts: {
      builder: 'per_request',
      turns: 1,
      calls: 1,
      rows: 1,
      trainedCalls: 1,
      tokens: { sampled: 2, trained: 2, excluded: 0 },
    },
    timing: { run_ms: 5 },
    artifacts: [],
    endedAt: 1_000_000,
    ...more,
  }
}

export function makeResult(outcome: SessionOutcome, more: Partial<SessionResult> = {}): SessionResult {
  const { status, failure } = outcome
  return {
    session_id: outcome.sessionId,
    task_id: outcome.taskId,
    status,
    trajectory: {
      status: status === 'TIMEOUT' ? 'TIMEOUT' : status === 'COMPLETED' ? 'COMPLETED' : 'ERROR',
      metadata: {},
      traces: [
        {
          prompt_ids: [1, 2, 3],
          response_ids: [4, 5],
          loss_mask: [1, 1],
          prompt_messages: [{ role: 'user', content: 'é\n"\u2028' }],
          response_messages: [{ role: 'assistant', content: 'ok' }],
          response_logprobs: [-0.5, null],
          reward: 1,
          metadata: {},
        },
      ],
    },
    timing: outcome.timing,
    node_id: outcome.nodeId,
    ...(failure !== undefined && { failure, error: failure.message }),
    metadata: { attempt: outcome.attempt },
    ...more,
  }
}
