import type { ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { type HistoryLog, monotonic, type Report } from './history.ts'
import { forward, give, type HttpService, serve, type WireAnswer, type WireRequest } from './http.ts'
import type { Chance } from './random.ts'

/** Probabilities of faults on a connection. */
export interface FaultRates {
  /** The server handles the request, and its answer is lost. */
  loseAnswer: number
  loseRequest: number
  /** The request arrives a second time. */
  repeat: number
  delay: number
}

export const CALM: FaultRates = { loseAnswer: 0, loseRequest: 0, repeat: 0, delay: 0 }
export const STORMY: FaultRates = { loseAnswer: 0.15, loseRequest: 0.1, repeat: 0.2, delay: 0.2 }

const LONGEST_DELAY_MS = 800
/** Maximum number of requests kept for replays. */
const MOST_KEPT = 60

export interface TapOptions {
  serverUrl: string
  log: HistoryLog
  chance: Chance
}

/**
 * Proxy between one node and the server. It records all leases and reports with their answers, and can cut, delay, drop and
 * repeat requests.
 */
export class Tap implements AsyncDisposable {
  readonly #options: TapOptions
  #service!: HttpService
  weather: FaultRates = CALM
  #isCut = false
  /** Reports of this node, for replays. */
  readonly kept: WireRequest[] = []
  /** Join requests of its processes, for replays. */
  readonly joins: WireRequest[] = []

  private constructor(options: TapOptions) {
    this.#options = options
  }

  static async open(host: string, options: TapOptions): Promise<Tap> {
    const tap = new Tap(options)
    tap.#service = await serve(host, (request, outgoing) => tap.#pass(request, outgoing))
    return tap
  }

  get url(): string {
    return this.#service.url
  }

  /** Stops forwarding silently: both sides wait for data. */
  cut(): void {
    this.#isCut = true
  }

  heal(): void {
    this.#isCut = false
    this.weather = CALM
    this.#service.hangUp()
  }

  async #pass(request: WireRequest, outgoing: ServerResponse): Promise<void> {
    const { chance } = this.#options
    // The request stays open until the connection is restored: a cut connection signals nothing.
    if (this.#isCut) return
    if (chance.happens(this.weather.loseRequest)) return void outgoing.destroy()
    if (chance.happens(this.weather.delay)) await sleep(chance.next() * LONGEST_DELAY_MS)
    const gone = new AbortController()
    outgoing.on('close', () => gone.abort())
    const doesRepeat = !isPoll(request) && chance.happens(this.weather.repeat)
    const answer = await this.#deliver('node', request, gone.signal)
    if (doesRepeat) await this.#deliver('replay', request).catch(() => undefined)
    if (this.#isCut) return
    if (chance.happens(this.weather.loseAnswer)) return void outgoing.destroy()
    if (!outgoing.destroyed) give(answer, outgoing)
  }

  async #deliver(origin: Report['origin'], request: WireRequest, signal?: AbortSignal): Promise<WireAnswer> {
    const { log, serverUrl } = this.#options
    if (isReport(request)) {
      this.kept.push(request)
      if (this.kept.length > MOST_KEPT) this.kept.shift()
    }
    if (request.path.endsWith('/join')) this.joins.push(request)
    const began = monotonic()
    try {
      // A report is forwarded even if the node has disconnected.
      const answer = await forward(serverUrl, request, isReport(request) ? undefined : signal)
      recordExchange(log, { origin, request, began, answer })
      return answer
    } catch (error) {
      recordExchange(log, { origin, request, began })
      throw error
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#service[Symbol.asyncDispose]()
  }
}

/** Polls are not repeated, because a second poll would lease sessions for no node; lost answers cover that case. */
function isPoll({ path }: WireRequest): boolean {
  return path.endsWith('/lease')
}

function isReport({ path }: WireRequest): boolean {
  return path.endsWith('/complete')
}

const Completion = z.object({
  outcome: z.object({ sessionId: z.string(), attempt: z.int(), status: z.string() }),
})
const Answered = z.object({ kind: z.enum(['accepted', 'duplicate']) })
const Refused = z.object({ error: z.object({ code: z.string(), message: z.string() }) })
const Orders = z.object({
  orders: z.array(z.object({ order: z.object({ sessionId: z.string(), attempt: z.int() }) })),
})

interface Exchange {
  origin: Report['origin']
  request: WireRequest
  began: number
  answer?: WireAnswer
  note?: string
}

/** Records leases and reports in the history. */
export function recordExchange(log: HistoryLog, { origin, request, began, answer, note }: Exchange): void {
  const [, nodeId = '', verb] = /^\/nodes\/([^/]+)\/(lease|complete)$/.exec(request.path) ?? []
  if (verb === 'lease') {
    const orders = Orders.safeParse(parse(answer?.body))
    if (!orders.success) return
    const at = monotonic()
    for (const { order } of orders.data.orders) {
      log.add({ kind: 'order', nodeId, sessionId: order.sessionId, attempt: order.attempt, at })
    }
  }
  if (verb !== 'complete') return
  const said = Completion.safeParse(parse(request.body))
  if (!said.success) return
  const { sessionId, attempt, status } = said.data.outcome
  const refused = Refused.safeParse(parse(answer?.body))
  const why = refused.success ? refused.data.error.code : undefined
  const notes = [note, status, why].filter((text) => text !== undefined).join(', ')
  log.add({
    kind: 'report',
    origin,
    nodeId,
    sessionId,
    attempt,
    began,
    ended: monotonic(),
    answer: toAnswer(answer),
    note: notes,
  })
}

function toAnswer(answer: WireAnswer | undefined): Report['answer'] {
  if (answer === undefined || answer.status >= 500) return 'unknown'
  if (answer.status >= 400) return 'refused'
  const parsed = Answered.safeParse(parse(answer.body))
  return parsed.success ? parsed.data.kind : 'unknown'
}

function parse(body: Buffer | undefined): unknown {
  try {
    return JSON.parse(body?.toString() ?? '')
  } catch {
    return undefined
  }
}
