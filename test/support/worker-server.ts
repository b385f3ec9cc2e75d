import { createHash } from 'node:crypto'
import { zstdDecompressSync } from 'node:zlib'
import { mountRoutes } from '../../src/api/mount.ts'
import { routes } from '../../src/api/routes/index.ts'
import { createClientOf } from '../../src/client/client.ts'
import type { Clock } from '../../src/lib/async/clock.ts'
import { failureClasses, RolloutError } from '../../src/model/failure.ts'
import type { PolicyState } from '../../src/model/policy.ts'
import { TaskRequest } from '../../src/model/task.ts'
import type { WorkerClient } from '../../src/node/server-link/worker-node.ts'

/** The routes that a worker uses. */
const table = {
  joinNode: routes.joinNode,
  leaseSessions: routes.leaseSessions,
  renewLeases: routes.renewLeases,
  pollPolicy: routes.pollPolicy,
  completeSession: routes.completeSession,
  releaseLeases: routes.releaseLeases,
  drainNode: routes.drainNode,
  leaveNode: routes.leaveNode,
  beginUpload: routes.beginUpload,
  getUpload: routes.getUpload,
  putPart: routes.putPart,
}

/** Network fault of one request. */
export type Fault =
  | 'none'
  /** The request never arrives. */
  | 'cut-before'
  /** The server handles the request, and the answer is lost. */
  | 'cut-after'
  /** The request arrives twice. */
  | 'twice'
  | 'unavailable'
  /** An intermediate proxy answers 404. */
  | 'foreign-404'
  | 'slow'
  /** No answer is sent. */
  | 'silent'

interface Session {
  id: string
  state: 'queued' | 'leased' | 'ended'
  attempt: number
  node?: string
  hasRenewed: boolean
  beatAt: number
  accepted?: { attempt: number; digest: string | undefined }
  isCancelled: boolean
}

interface Upload {
  id: string
  sessionId: string
  attempt: number
  bytes: number
  digest: string
  parts: Buffer
}

/** Ending of a leased attempt. */
export type AttemptEnd = 'accepted' | 'refilled' | 'released' | 'lost' | 'cancelled'

/** A rollout server in memory with the routes of a worker, and faults in the connection to the node. */
export class WorkerServer {
  readonly sessions = new Map<string, Session>()
  readonly ends = new Map<string, AttemptEnd[]>()
  /** Faults of the next requests, in order; later requests have none. */
  faults: Fault[] = []
  isAway = false
  isDraining = false
  /** Number of slow requests that have not arrived yet, including abandoned requests. */
  onTheWay = 0
  node: { id: string; boot: string } | undefined
  readonly requests: string[] = []
  readonly refusals: string[] = []
  /** Accepted results by session. */
  readonly results = new Map<string, { session_id: string; metadata: { polar: { attempt: number } } }>()
  /** The server rejects results of these sessions as invalid. */
  poisoned = new Set<string>()
  /** Larger results are uploaded. */
  inlineBytes: number | undefined = 64 * 1024
  /** Absent: the server has no policy state. */
  policy: PolicyState | undefined
  /** The latest confirmation of the node. */
  confirmed: { change: number; version: number | null; in_flight: number } | undefined
  readonly #clock: Clock
  readonly #leaseMs: number
  readonly #uploads = new Map<string, Upload>()
  readonly #waiting = new Set<() => void>()
  readonly #app

  constructor(clock: Clock, { leaseMs = 60_000 }: { leaseMs?: number } = {}) {
    this.#clock = clock
    this.#leaseMs = leaseMs
    this.#app = mountRoutes({
      table,
      authorize: () => ({}),
      onBug: (error) => {
        throw error
      },
      checkAnswers: true,
      handlers: {
        joinNode: async ({ params, body }) => {
          const isNew = this.node?.boot !== body.boot_id
          if (isNew && this.node !== undefined && this.node.boot !== body.replaces)
            return { kind: 'taken' as const, boot_id: this.node.boot }
          this.node = { id: params.node_id, boot: body.boot_id }
          this.isDraining = false
          const held = new Set(body.holding.map(({ session_id, attempt }) => `${session_id}/${attempt}`))
          for (const session of isNew ? this.#leased() : []) {
            if (!held.has(`${session.id}/${session.attempt}`)) this.#requeue(session, 'lost')
          }
          return {
            kind: 'joined' as const,
            node: {
              ...body,
              node_id: params.node_id,
              metrics: {},
              dispatch_reservations: 0,
              healthy: true,
              draining: false,
              last_heartbeat: '2026-01-01T00:00:00Z',
            },
            lease_ms: this.#leaseMs,
            outcomes: body.holding.map((lease) => this.#renewed(lease)),
            max_part_bytes: 1024,
            policy: this.policy,
            ...(this.inlineBytes !== undefined && { max_inline_bytes: this.inlineBytes }),
          }
        },
        leaseSessions: async ({ params, body, signal }) => {
          this.#assertNode(params.node_id, body.boot_id)
          const holding = new Set(body.holding?.map(({ session_id, attempt }) => `${session_id}/${attempt}`))
          for (const session of this.#leased()) {
            if (!session.hasRenewed && !holding.has(`${session.id}/${session.attempt}`))
              this.#requeue(session, 'released')
          }
          if (!this.isDraining && this.#queued().length === 0) await this.#untilWork(body.wait * 1000, signal)
          this.#assertNode(params.node_id, body.boot_id)
          const given = this.isDraining || signal.aborted ? [] : this.#queued().slice(0, body.free_slots)
          for (const session of given) {
            session.state = 'leased'
            session.node = params.node_id
            session.beatAt = this.#clock.now()
            session.hasRenewed = false
          }
          return {
            draining: this.isDraining,
            orders: given.map(({ id, attempt }) => ({
              lease_ms: this.#leaseMs,
              order: { schemaVersion: 1 as const, sessionId: id, attempt, task: taskOf(id) },
            })),
          }
        },
        renewLeases: async ({ params, body }) => {
          this.#assertNode(params.node_id, body.boot_id)
          return { outcomes: body.renewals.map((lease) => this.#renewed(lease)), draining: this.isDraining }
        },
        pollPolicy: async ({ params, body: { boot_id, wait, ...confirmed }, signal }) => {
          this.#assertNode(params.node_id, boot_id)
          this.confirmed = confirmed
          if (this.policy!.change <= confirmed.change) await this.#untilWork(wait * 1000, signal)
          return this.policy!
        },
        completeSession: async ({ body: { outcome, result: inline, result_upload_id: uploadId, artifacts } }) => {
          const session = this.sessions.get(outcome.sessionId)
          if (inline !== undefined) this.#assertInline(inline, uploadId)
          if (session === undefined) throw new RolloutError('request.not-found', 'Nobody knows it.')
          const uploads = [uploadId, ...artifacts.map(({ upload_id }) => upload_id)].filter((id) => id !== undefined)
          for (const id of uploads) {
            const upload = this.#uploads.get(id)
            if (upload === undefined) throw new RolloutError('request.not-found', 'No such upload.')
            if (upload.parts.length < upload.bytes) throw new RolloutError('request.conflict', 'Not whole.')
            if (upload.attempt !== outcome.attempt || upload.sessionId !== outcome.sessionId)
              throw new Error('an upload of another attempt')
          }
          const result = inline === undefined ? this.#uploads.get(uploadId ?? '') : toInline(inline)
          const { accepted } = session
          if (accepted?.attempt === outcome.attempt && accepted.digest === result?.digest)
            return { kind: 'duplicate' as const }
          if (session.state !== 'leased' || session.attempt !== outcome.attempt || session.node !== outcome.nodeId) {
            this.refusals.push(`${outcome.sessionId}/${outcome.attempt}`)
            throw new RolloutError('request.stale', 'It has passed on.')
          }
          if (result !== undefined && this.poisoned.has(session.id))
            throw new RolloutError('request.malformed', 'That is no result.', { status: 422 })
          if (result !== undefined) {
            const text = zstdDecompressSync(result.parts).toString()
            this.results.set(session.id, JSON.parse(text) as never)
          }
          session.accepted = { attempt: outcome.attempt, digest: result?.digest }
          const isSpoilt =
            outcome.failure !== undefined && failureClasses[outcome.failure.code].blame === 'infrastructure'
          if (isSpoilt) this.#requeue(session, 'refilled')
          else this.#end(session, 'accepted')
          return { kind: 'accepted' as const, is_refilled: isSpoilt, task_status: 'running' as const }
        },
        releaseLeases: async ({ body }) => {
          const released = body.leases.filter(({ session_id, attempt }) => {
            const session = this.sessions.get(session_id)
            const isHeld = session?.state === 'leased' && session.attempt === attempt
            if (isHeld) this.#requeue(session, 'released')
            return isHeld
          })
          return { released }
        },
        drainNode: async ({ params }) => {
          this.isDraining = true
          this.#wake()
          return {
            node_id: params.node_id,
            gateway_url: 'http://127.0.0.1:1',
            max_init_workers: 1,
            max_run_workers: 1,
            max_postrun_workers: 1,
            heartbeat_interval_seconds: 30,
            metrics: {},
            dispatch_reservations: 0,
            healthy: true,
            draining: true,
            last_heartbeat: '2026-01-01T00:00:00Z',
          }
        },
        leaveNode: async ({ params }) => {
          const left = this.#leased()
          for (const session of left) this.#requeue(session, 'released')
          this.node = undefined
          this.#wake()
          return { node_id: params.node_id, requeued_sessions: left.length }
        },
        beginUpload: async ({ body: { session_id: sessionId, attempt, bytes, digest } }) => {
          const session = this.sessions.get(sessionId)
          if (session === undefined) throw new RolloutError('request.not-found', 'Nobody knows it.')
          const isHeld = session.state === 'leased' && session.attempt === attempt
          if (!isHeld && session.accepted?.attempt !== attempt) {
            this.refusals.push(`${sessionId}/${attempt}`)
            throw new RolloutError('request.stale', 'It has passed on.')
          }
          const id = `upl_${createHash('sha256').update(`${sessionId}/${attempt}/${digest}`).digest('hex').slice(0, 16)}`
          const upload = this.#uploads.get(id) ?? { id, sessionId, attempt, bytes, digest, parts: Buffer.alloc(0) }
          this.#uploads.set(id, upload)
          return toUpload(upload)
        },
        getUpload: async ({ params }) => toUpload(this.#uploads.get(params.upload_id)!),
        putPart: async ({ params, query, body }) => {
          const upload = this.#uploads.get(params.upload_id)!
          const pieces: Uint8Array[] = []
          for await (const piece of body) pieces.push(piece)
          const part = Buffer.concat(pieces)
          if (query.offset > upload.parts.length) throw new RolloutError('request.conflict', 'A gap.')
          upload.parts = Buffer.concat([upload.parts.subarray(0, query.offset), part])
          return toUpload(upload)
        },
      },
    })
  }

  /** Returns the client of one process of the node; `isDead` drops all its requests. */
  connect(nodeProcess: { isDead: boolean } = { isDead: false }): WorkerClient {
    return createClientOf(table, {
      baseUrl: 'http://server.test',
      attempts: 1,
      clock: this.#clock,
      random: () => 0.5,
      fetch: (request, { signal }) => this.#fetch(request, signal ?? request.signal, nodeProcess),
    })
  }

  setPolicy(policy: PolicyState): void {
    this.policy = policy
    this.#wake()
  }

  submit(...ids: string[]): void {
    for (const id of ids) {
      const made = { attempt: 1, hasRenewed: false, beatAt: 0, isCancelled: false }
      this.sessions.set(id, { id, state: 'queued', ...made })
    }
    this.#wake()
  }

  cancel(id: string): void {
    const session = this.sessions.get(id)!
    if (session.state === 'ended') return
    session.isCancelled = true
    if (session.state === 'leased') this.#note(session, 'cancelled')
    session.state = 'ended'
  }

  /** Expires leases that were not renewed in time. */
  expire(): void {
    for (const session of this.#leased()) {
      if (this.#clock.now() - session.beatAt >= this.#leaseMs) this.#requeue(session, 'lost')
    }
  }

  get isDone(): boolean {
    return [...this.sessions.values()].every(({ state }) => state === 'ended')
  }

  /** An aborted request has no answer, but may still arrive at the server. */
  #fetch(request: Request, signal: AbortSignal, nodeProcess: { isDead: boolean }): Promise<Response> {
    return Promise.race([this.#carry(request, signal, nodeProcess), this.#never(signal)])
  }

  async #carry(request: Request, signal: AbortSignal, nodeProcess: { isDead: boolean }): Promise<Response> {
    this.requests.push(`${request.method} ${new URL(request.url).pathname}`)
    const fault = this.isAway ? 'cut-before' : (this.faults.shift() ?? 'none')
    if (nodeProcess.isDead || fault === 'silent') return this.#never(signal)
    switch (fault) {
      case 'cut-before':
        throw new TypeError('fetch failed')
      case 'cut-after':
        await this.#app.fetch(request)
        throw new TypeError('fetch failed')
      case 'twice':
        await this.#app.fetch(request.clone())
        break
      case 'unavailable':
        return Response.json({ detail: 'busy' }, { status: 503 })
      case 'foreign-404':
        return new Response('<h1>nginx</h1>', { status: 404 })
      case 'slow':
        this.onTheWay++
        await new Promise<void>((resolve) => this.#clock.after(7000, resolve))
        this.onTheWay--
        break
      case 'none':
        break
    }
    const response = await this.#app.fetch(request)
    if (nodeProcess.isDead) return this.#never(signal)
    return response
  }

  async #never(signal: AbortSignal): Promise<never> {
    signal.throwIfAborted()
    return new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true })
    })
  }

  async #untilWork(ms: number, signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#waiting.add(resolve)
    signal.addEventListener('abort', () => resolve(), { once: true })
    const stop = this.#clock.after(ms, resolve)
    await promise
    stop()
    this.#waiting.delete(resolve)
  }

  #wake(): void {
    for (const wake of this.#waiting) wake()
  }

  #assertNode(id: string, boot: string | undefined): void {
    if (this.node?.id !== id) throw new RolloutError('request.not-found', 'Who are you?')
    if (boot !== undefined && this.node.boot !== boot) throw new RolloutError('request.stale', 'You were replaced.')
  }

  #assertInline(inline: string, uploadId: string | undefined): void {
    if (uploadId !== undefined) throw new Error('a result and an upload of one')
    if (Buffer.byteLength(inline, 'base64') > (this.inlineBytes ?? -1))
      throw new RolloutError('request.malformed', 'There is no such field.', { status: 422 })
  }

  #renewed({ session_id, attempt }: { session_id: string; attempt: number }) {
    const session = this.sessions.get(session_id)
    const lease = { session_id, attempt }
    if (session?.state === 'leased' && session.attempt === attempt) {
      session.beatAt = this.#clock.now()
      session.hasRenewed = true
      return { ...lease, kind: 'held' as const }
    }
    if (session?.accepted?.attempt === attempt) return { ...lease, kind: 'accepted' as const }
    if (session?.isCancelled && session.attempt === attempt) return { ...lease, kind: 'cancelled' as const }
    return { ...lease, kind: 'lost' as const }
  }

  #leased(): Session[] {
    return [...this.sessions.values()].filter(({ state }) => state === 'leased')
  }

  #queued(): Session[] {
    return [...this.sessions.values()].filter(({ state }) => state === 'queued')
  }

  #requeue(session: Session, end: AttemptEnd): void {
    this.#note(session, end)
    session.state = 'queued'
    session.attempt += 1
    this.#wake()
  }

  #end(session: Session, end: AttemptEnd): void {
    this.#note(session, end)
    session.state = 'ended'
  }

  #note({ id, attempt }: Session, end: AttemptEnd): void {
    const key = `${id}/${attempt}`
    this.ends.set(key, [...(this.ends.get(key) ?? []), end])
  }
}

function taskOf(sessionId: string): TaskRequest {
  const agent = { harness: 'shell', custom_shell: { command: 'true' } }
  return TaskRequest.parse({ task_id: `task-of-${sessionId}`, instruction: '', agent })
}

function toInline(text: string): Pick<Upload, 'parts' | 'digest'> {
  const parts = Buffer.from(text, 'base64')
  return { parts, digest: `sha256:${createHash('sha256').update(parts).digest('hex')}` }
}

function toUpload({ id, parts, bytes, digest }: Upload) {
  return { upload_id: id, offset: parts.length, bytes, digest, is_complete: parts.length === bytes && bytes > 0 }
}
