import type { ServerResponse } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { type HistoryLog, monotonic, type Report } from './history.ts'
import { forward, give, type HttpService, serve, type WireAnswer, type WireRequest } from './http.ts'
import type { Chance } from './random.ts'

/** How badly the wire treats what goes over it; each a probability. */
export interface Weather {
  /** The server does what it was asked, and the node never hears of it. */
  loseAnswer: number
  loseRequest: number
  /** The same bytes arrive a second time. */
  repeat: number
  delay: number
}

export const CALM: Weather = { loseAnswer: 0, loseRequest: 0, repeat: 0, delay: 0 }
export const STORMY: Weather = { loseAnswer: 0.15, loseRequest: 0.1, repeat: 0.2, delay: 0.2 }

const LONGEST_DELAY_MS = 800
/** Enough for whoever wants to send some of it again. */
const MOST_KEPT = 60

export interface TapOptions {
  serverUrl: string
  log: HistoryLog
  chance: Chance
}

/**
 * The wire between one node and the server. It writes down what either says, which is the truth of who was given what and
 * who was told what, and it can be cut, be slow, lose things and say them twice.
 */
export class Tap implements AsyncDisposable {
  readonly #options: TapOptions
  #service!: HttpService
  weather: Weather = CALM
  #isCut = false
  /** Reports of this node, for whoever wants to send them again. */
  readonly kept: WireRequest[] = []
  /** What its processes said when they began, the same. */
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

  /** Nobody is told: both sides wait for what does not come. */
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
    // Open until it is healed: a wire that is cut says nothing, not even that.
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
      // A report is not taken back when the node is gone: it is on its way.
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

/** A poll that came twice would take work that nobody does: that is left to lost answers. */
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

/** What of it concerns who holds what. */
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
