import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { zstdCompressSync } from 'node:zlib'
import * as z from 'zod'
import { type HistoryLog, monotonic, type Report } from './history.ts'
import { forward, type WireAnswer, type WireRequest } from './http.ts'
import type { Chance } from './random.ts'
import { recordExchange, type Tap } from './tap.ts'

export interface ForgerOptions {
  cluster: { serverUrl: string; nodes: readonly { tap: Tap }[] }
  /** Valid for any node: the requests are wrong, not their authentication. */
  token: string
  runtimes: readonly string[]
  log: HistoryLog
  chance: Chance
}

const NAME = 'mallory'
const TIMEOUT_MS = 4000

const Completion = z.looseObject({
  outcome: z.looseObject({ sessionId: z.string(), attempt: z.int(), nodeId: z.string() }),
  result: z.string().optional(),
  result_upload_id: z.string().optional(),
})
type Completion = z.infer<typeof Completion>
type ResultFields = Pick<Completion, 'result' | 'result_upload_id'>
interface Observed extends Completion {
  nodeId: string
  request: WireRequest
}

const Orders = z.object({
  orders: z.array(
    z.object({
      order: z.object({ sessionId: z.string(), attempt: z.int(), task: z.looseObject({ task_id: z.string() }) }),
    }),
  ),
})
type Order = z.infer<typeof Orders>['orders'][number]['order']

/**
 * A malicious or broken node: it replays requests of other nodes, sends requests in their name, mixes up sessions, attempts
 * and files, and leases sessions that it does not run. It knows all requests of the nodes.
 */
export class Forger {
  readonly #options: ForgerOptions
  readonly #serverUrl: string
  readonly #labels: readonly string[]
  /** Number of tries of each forgery. */
  readonly tried = new Map<string, number>()

  constructor(options: ForgerOptions) {
    this.#options = options
    this.#serverUrl = options.cluster.serverUrl
    this.#labels = [...new Set(options.runtimes)].map((kind) => `runtime:${kind}`)
  }

  async work(signal: AbortSignal): Promise<void> {
    const forgeries = Object.entries(this.#forgeries())
    while (!signal.aborted) {
      const [name, play] = this.#options.chance.pick(forgeries)
      this.tried.set(name, (this.tried.get(name) ?? 0) + 1)
      // The server may be unavailable.
      await play().catch(() => undefined)
      await sleep(this.#options.chance.between(50, 300), undefined, { signal }).catch(() => undefined)
    }
    await this.#send('POST', `/nodes/${NAME}/leave`, {}).catch(() => undefined)
  }

  #forgeries(): Record<string, () => Promise<void>> {
    const report =
      (change: (observed: Observed) => { nodeId: string; body: Completion } | undefined, note: string) => async () => {
        const observed = this.#pick()
        const forged = observed && change(observed)
        if (forged !== undefined) await this.#report('forged', forged.nodeId, forged.body, note)
      }
    // Without a file, the request passes more checks: only its outcome is wrong.
    const bare = (body: Completion): Completion => {
      const { result: _inline, result_upload_id: _, ...rest } = body
      return this.#options.chance.happens(0.5) ? body : { ...rest, artifacts: [] }
    }
    return {
      replay: async () => {
        const observed = this.#pick()
        if (observed !== undefined) await this.#report('replay', observed.nodeId, observed.request.body)
      },
      'as another node': report(({ request: _, nodeId: _node, ...body }) => {
        return { nodeId: NAME, body: bare({ ...body, outcome: { ...body.outcome, nodeId: NAME } }) }
      }, 'as another node'),
      'through another node': report(
        ({ request: _, nodeId: _node, ...body }) => ({ nodeId: NAME, body: bare(body) }),
        'by another',
      ),
      'for another node': report(({ request: _, nodeId, ...body }) => {
        return { nodeId, body: bare({ ...body, outcome: { ...body.outcome, nodeId: NAME } }) }
      }, 'in the name of another'),
      'an attempt ago': report(({ request: _, nodeId, ...body }) => {
        const attempt = body.outcome.attempt - 1
        return attempt < 1 ? undefined : { nodeId, body: bare({ ...body, outcome: { ...body.outcome, attempt } }) }
      }, 'of the attempt before'),
      'an attempt ahead': report(({ request: _, nodeId, ...body }) => {
        const outcome = { ...body.outcome, attempt: body.outcome.attempt + 1 }
        return { nodeId, body: { ...body, outcome } }
      }, 'of the attempt to come'),
      'a file of nobody': report(({ request: _, nodeId, ...body }) => {
        const { result: _inline, ...rest } = body
        return { nodeId, body: { ...rest, result_upload_id: `upl_${'0'.repeat(40)}` } }
      }, 'with a file that is not there'),
      "another session's file": report(({ request: _, nodeId, ...body }) => {
        const other = this.#pick((each) => each.outcome.sessionId !== body.outcome.sessionId)
        if (other === undefined || !hasResult(other)) return undefined
        const { result: _inline, result_upload_id: _id, ...rest } = body
        return { nodeId, body: { ...rest, ...resultOf(other) } }
      }, "with another session's file"),
      "another session's name": report(({ request: _, nodeId, ...body }) => {
        const other = this.#pick((each) => each.outcome.sessionId !== body.outcome.sessionId)
        if (other === undefined || !hasResult(body)) return undefined
        const { sessionId, attempt } = other.outcome
        return { nodeId, body: { ...body, outcome: { ...body.outcome, sessionId, attempt } } }
      }, 'as that of another session'),
      'a result cut short': report(({ request: _, nodeId, ...body }) => {
        const bytes = Buffer.from(body.result ?? '', 'base64')
        return { nodeId, body: { ...body, result: bytes.subarray(0, -1).toString('base64') } }
      }, 'with a result that is not all there'),
      'two results': report(({ request: _, nodeId, ...body }) => {
        const { sessionId, taskId = '' } = body.outcome as Completion['outcome'] & { taskId?: string }
        const result = compressed(forgedResult(sessionId, taskId, nodeId)).toString('base64')
        return { nodeId, body: { ...body, result, result_upload_id: `upl_${'0'.repeat(40)}` } }
      }, 'with a result and a file'),
      'join as one that is dead': async () => {
        const joins = this.#options.cluster.nodes.flatMap(({ tap }) => tap.joins)
        if (joins.length > 0)
          await forward(this.#serverUrl, this.#options.chance.pick(joins), AbortSignal.timeout(TIMEOUT_MS))
      },
      'in one piece': () => this.#postWhole(),
      'give back what is not its own': () => this.#releaseOthers(),
      'renew what is not its own': () => this.#renewOthers(),
      'work for nobody': () => this.#leaseUnknown(),
      'without a token': () => this.#sendUnknown(),
      'take and forget': async () => void (await this.#lease()),
      'take, give back, deliver': () => this.#deliverReleased(),
      'take, deliver what is not it': () => this.#deliverWrong(),
    }
  }

  #pick(isMeant: (observed: Observed) => boolean = () => true): Observed | undefined {
    const observed = this.#options.cluster.nodes
      .flatMap(({ tap }) => tap.kept)
      .flatMap(toObserved)
      .filter(isMeant)
    return observed.length === 0 ? undefined : this.#options.chance.pick(observed)
  }

  /** Like NVIDIA's nodes, sends a result without the attempt; sometimes also without the node. */
  async #postWhole(): Promise<void> {
    const observed = this.#pick()
    if (observed === undefined) return
    const { sessionId, taskId = '', attempt } = observed.outcome as Completion['outcome'] & { taskId?: string }
    const result = forgedResult(sessionId, taskId, this.#options.chance.happens(0.5) ? NAME : undefined)
    const began = monotonic()
    const answer = await this.#send('POST', '/callbacks/session_result', result)
    this.#note(sessionId, attempt, began, answer.status === 200 ? 'accepted' : 'refused', 'in one piece, by another')
  }

  async #releaseOthers(): Promise<void> {
    const lease = this.#pickLease()
    if (lease === undefined) return
    const began = monotonic()
    const answer = await this.#send('POST', `/nodes/${NAME}/release`, { leases: [lease] })
    const isTaken = answer.status === 200 && !answer.body.toString().includes('"released":[]')
    this.#note(lease.session_id, lease.attempt, began, isTaken ? 'accepted' : 'refused', 'gave back what another has')
  }

  async #renewOthers(): Promise<void> {
    const lease = this.#pickLease()
    if (lease === undefined) return
    const began = monotonic()
    const answer = await this.#send('POST', `/nodes/${NAME}/renew`, { renewals: [lease] })
    const isTaken = answer.status === 200 && answer.body.toString().includes('"held"')
    this.#note(lease.session_id, lease.attempt, began, isTaken ? 'accepted' : 'refused', 'renewed what another has')
  }

  /** Returns a recent lease of another node. */
  #pickLease(): { session_id: string; attempt: number } | undefined {
    const { log, chance } = this.#options
    const orders = log.entries.filter((entry) => entry.kind === 'order' && entry.nodeId !== NAME).slice(-20)
    if (orders.length === 0) return undefined
    const order = chance.pick(orders) as { sessionId: string; attempt: number }
    return { session_id: order.sessionId, attempt: order.attempt }
  }

  async #leaseUnknown(): Promise<void> {
    const began = monotonic()
    const answer = await this.#send('POST', '/nodes/nobody/lease', { free_slots: 1, labels: this.#labels })
    if (answer.status === 200) this.#note('nobody', 1, began, 'accepted', 'work for a node that never joined')
  }

  async #sendUnknown(): Promise<void> {
    const observed = this.#pick()
    if (observed === undefined) return
    const { authorization: _, ...headers } = observed.request.headers
    const request = { ...observed.request, headers: { ...headers, authorization: 'Bearer of-nobody' } }
    const began = monotonic()
    const answer = await forward(this.#serverUrl, request, AbortSignal.timeout(TIMEOUT_MS))
    recordExchange(this.#options.log, { origin: 'forged', request, began, answer, note: 'with a token of nobody' })
  }

  async #lease(): Promise<Order | undefined> {
    const labels = this.#labels
    const registration = { gateway_url: 'http://127.0.0.1:1', max_init_workers: 1, max_run_workers: 1 }
    const join = { ...registration, max_postrun_workers: 1, version: '0.0.0', boot_id: 'the-same', labels }
    await this.#send('POST', `/nodes/${NAME}/join`, join)
    const began = monotonic()
    const request = this.#toRequest('POST', `/nodes/${NAME}/lease`, { free_slots: 1, labels, holding: [] })
    const answer = await forward(this.#serverUrl, request, AbortSignal.timeout(TIMEOUT_MS))
    recordExchange(this.#options.log, { origin: 'forged', request, began, answer })
    return Orders.safeParse(JSON.parse(answer.body.toString())).data?.orders[0]?.order
  }

  async #deliverReleased(): Promise<void> {
    const order = await this.#lease()
    if (order === undefined) return
    const { sessionId, attempt } = order
    const result = await this.#deliver(order, compressed(forgedResult(sessionId, order.task.task_id, NAME)))
    const answer = await this.#send('POST', `/nodes/${NAME}/release`, { leases: [{ session_id: sessionId, attempt }] })
    if (answer.status !== 200) return
    await this.#report('forged', NAME, forgedCompletion(order, result), 'after it was given back')
  }

  /** Leases a session, and delivers another result, no result or a truncated result. */
  async #deliverWrong(): Promise<void> {
    const order = await this.#lease()
    if (order === undefined) return
    const { sessionId, task } = order
    const other = this.#pick((each) => each.outcome.sessionId !== sessionId)?.outcome.sessionId ?? 'ses_0'
    const wrong: [string, Buffer][] = [
      ["another session's result", compressed(forgedResult(other, task.task_id, NAME))],
      ["another task's result", compressed(forgedResult(sessionId, 'another-task', NAME))],
      ["another node's result", compressed(forgedResult(sessionId, task.task_id, 'node-0'))],
      ['no result', compressed({ hello: 'world' })],
      ['no zstd', Buffer.from('{"session_id":1}')],
    ]
    const [note, bytes] = this.#options.chance.pick(wrong)
    const result = await this.#deliver(order, bytes, { isCut: this.#options.chance.happens(0.2) })
    await this.#report('forged', NAME, forgedCompletion(order, result), note)
  }

  /** Uploads the result, or returns it inline. */
  async #deliver(order: Order, bytes: Buffer, { isCut = false } = {}): Promise<ResultFields> {
    if (this.#options.chance.happens(0.5)) return { result_upload_id: await this.#upload(order, bytes, { isCut }) }
    return { result: (isCut ? bytes.subarray(0, -1) : bytes).toString('base64') }
  }

  /** Uploads parts out of order and first with wrong bytes. */
  async #upload({ sessionId, attempt }: Order, bytes: Buffer, { isCut = false } = {}): Promise<string> {
    const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`
    const begin = { session_id: sessionId, attempt, bytes: bytes.length, digest }
    const begun = await this.#send('POST', `/nodes/${NAME}/uploads`, begin)
    const id =
      z.object({ upload_id: z.string() }).safeParse(JSON.parse(begun.body.toString())).data?.upload_id ?? 'none'
    const path = `/nodes/${NAME}/uploads/${id}`
    await this.#send('PUT', `${path}?offset=${bytes.length - 1}`, bytes.subarray(-1))
    await this.#send('PUT', `${path}?offset=0`, Buffer.alloc(bytes.length, 'x'))
    await this.#send('PUT', `${path}?offset=0`, isCut ? bytes.subarray(0, -1) : bytes)
    return id
  }

  async #report(origin: Report['origin'], nodeId: string, body: Completion | Buffer, note?: string): Promise<void> {
    const { log } = this.#options
    const request = this.#toRequest('POST', `/nodes/${nodeId}/complete`, body)
    const began = monotonic()
    const more = note === undefined ? {} : { note }
    try {
      const answer = await forward(this.#serverUrl, request, AbortSignal.timeout(TIMEOUT_MS))
      recordExchange(log, { origin, request, began, answer, ...more })
    } catch {
      recordExchange(log, { origin, request, began, ...more })
    }
  }

  #note(sessionId: string, attempt: number, began: number, answer: Report['answer'], note: string): void {
    const entry = { kind: 'report', origin: 'forged', nodeId: NAME, sessionId, attempt, began, answer, note } as const
    this.#options.log.add({ ...entry, ended: monotonic() })
  }

  #send(method: string, path: string, body: unknown): Promise<WireAnswer> {
    return forward(this.#serverUrl, this.#toRequest(method, path, body), AbortSignal.timeout(TIMEOUT_MS))
  }

  #toRequest(method: string, path: string, body: unknown): WireRequest {
    const isBytes = Buffer.isBuffer(body)
    const type = isBytes && method === 'PUT' ? 'application/octet-stream' : 'application/json'
    const headers = { authorization: `Bearer ${this.#options.token}`, 'content-type': type }
    return { method, path, headers, body: isBytes ? body : Buffer.from(JSON.stringify(body)) }
  }
}

function toObserved(request: WireRequest): Observed[] {
  const [, nodeId] = /^\/nodes\/([^/]+)\/complete$/.exec(request.path) ?? []
  const parsed = Completion.safeParse(JSON.parse(request.body.toString()))
  return nodeId === undefined || !parsed.success ? [] : [{ ...parsed.data, nodeId, request }]
}

function forgedResult(sessionId: string, taskId: string, nodeId: string | undefined) {
  return {
    session_id: sessionId,
    task_id: taskId,
    status: 'COMPLETED',
    trajectory: { status: 'COMPLETED', metadata: {}, traces: [] },
    timing: {},
    ...(nodeId !== undefined && { node_id: nodeId }),
    metadata: {},
  }
}

function hasResult({ result, result_upload_id }: ResultFields): boolean {
  return (result ?? result_upload_id) !== undefined
}

function resultOf({ result, result_upload_id }: ResultFields): ResultFields {
  return { ...(result !== undefined && { result }), ...(result_upload_id !== undefined && { result_upload_id }) }
}

function forgedCompletion({ sessionId, attempt, task }: Order, result: ResultFields): Completion {
  const outcome = { schemaVersion: 1, sessionId, taskId: task.task_id, attempt, nodeId: NAME, status: 'COMPLETED' }
  return { outcome: { ...outcome, timing: {}, artifacts: [], endedAt: 0 }, ...result, artifacts: [] }
}

function compressed(value: unknown): Buffer {
  return zstdCompressSync(JSON.stringify(value))
}
