import { createHash, createHmac } from 'node:crypto'
import { isIP } from 'node:net'
import { Readable } from 'node:stream'
import { Agent, request } from 'undici'
import { forbiddenIn, guardedConnect } from '../../lib/net/guarded-connect.ts'
import { OUTBOUND_HEADER } from '../../lib/net/outbound-header.ts'
import type { OwnAddresses } from '../../lib/net/own-addresses.ts'
import type { DueCallback } from '../../store/dispatch/commands/callbacks.ts'
import type { AllowedHosts } from './allowed-hosts.ts'

/** What became of one try. `refused`: the other side, or we, will most likely say the same next time. */
export type Delivery =
  | { kind: 'delivered' }
  | { kind: 'failed'; error: string; isHostDown: boolean; retryAfterMs?: number }
  | { kind: 'refused'; error: string }

export interface DeliverOptions {
  allowed: AllowedHosts
  own: OwnAddresses
  secret: string | undefined
  timeoutMs: number
  connectTimeoutMs: number
  connectionsPerHost: number
  /** Unix milliseconds. */
  now: () => number
  /** All addresses of a name; that of the system unless told. */
  resolve?: (hostname: string) => Promise<string[]>
  openTaskResult: (taskId: string) => Promise<AsyncIterable<Uint8Array> | undefined>
}

/** Bodies up to here are kept from signing to sending; longer ones are read twice. */
const MOST_KEPT_BYTES = 4 * 2 ** 20
/** Longer answers are not read. */
const MOST_ANSWER_BYTES = 64 * 1024
const ANSWER_TIMEOUT_MS = 1000

export class Deliverer implements AsyncDisposable {
  readonly #options: DeliverOptions
  readonly #agent: Agent

  constructor(options: DeliverOptions) {
    this.#options = options
    const { allowed, own, timeoutMs, connectTimeoutMs, connectionsPerHost } = options
    this.#agent = new Agent({
      connect: guardedConnect({
        refuse(hostname, port, addresses) {
          const mine = addresses.find((address) => own.has(address, port))
          if (mine !== undefined) return `${hostname}:${port} is an address of Polar itself`
          // An address in the URL was checked with the URL.
          return isIP(hostname) === 0 ? allowed.refuseAddresses(hostname, addresses) : undefined
        },
        timeoutMs: connectTimeoutMs,
        ...(options.resolve !== undefined && { resolve: options.resolve }),
      }),
      connections: connectionsPerHost,
      pipelining: 1,
      headersTimeout: timeoutMs,
      bodyTimeout: timeoutMs,
      maxHeaderSize: 16 * 1024,
    })
  }

  /** Never throws but for the signal. */
  async deliver(due: DueCallback, signal: AbortSignal): Promise<Delivery> {
    const refusal = refuseUrl(due.url, this.#options)
    if (refusal !== undefined) return { kind: 'refused', error: `not an allowed host: ${refusal}` }
    let body: Body | undefined
    try {
      body = await this.#prepare(due.taskId)
    } catch (error) {
      return { kind: 'failed', error: `the result could not be read: ${describe(error)}`, isHostDown: false }
    }
    if (body === undefined) return { kind: 'refused', error: 'the task is not over, or not here any more' }
    try {
      return await this.#send(due, body, AbortSignal.any([signal, AbortSignal.timeout(this.#options.timeoutMs)]))
    } catch (error) {
      signal.throwIfAborted()
      const forbidden = forbiddenIn(error)
      if (forbidden !== undefined) return { kind: 'refused', error: `not an allowed host: ${forbidden.message}` }
      return { kind: 'failed', error: describe(error), isHostDown: true }
    }
  }

  async #send(due: DueCallback, body: Body, signal: AbortSignal): Promise<Delivery> {
    const delivery = deliveryIdOf(due)
    // A redirect is not followed: it would lead past the list of hosts.
    const answer = await request(due.url, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        'content-length': String(body.bytes),
        'user-agent': 'polar',
        [OUTBOUND_HEADER]: 'callback',
        'x-polar-task-id': toHeader(due.taskId),
        'x-polar-delivery': delivery,
        'idempotency-key': delivery,
        ...(body.signature !== undefined && { 'x-polar-signature': body.signature }),
      },
      body: body.open(),
      dispatcher: this.#agent,
      signal,
    })
    const text = await readSome(answer.body)
    const judged = judge(answer.statusCode, answer.headers['retry-after'], this.#options.now())
    return judged.kind === 'delivered' && isRefusal(text) ? NOT_TAKEN : judged
  }

  /** Reads all of it once, to know its length and to sign it. */
  async #prepare(taskId: string): Promise<Body | undefined> {
    const { openTaskResult, secret, now } = this.#options
    const stream = await openTaskResult(taskId)
    if (stream === undefined) return undefined
    const seconds = Math.floor(now() / 1000)
    const hmac = secret === undefined ? undefined : createHmac('sha256', secret).update(`${seconds}.`)
    let bytes = 0
    let kept: Uint8Array[] | undefined = []
    for await (const chunk of stream) {
      hmac?.update(chunk)
      bytes += chunk.length
      if (bytes > MOST_KEPT_BYTES) kept = undefined
      else kept?.push(chunk)
    }
    const whole = kept === undefined ? undefined : Buffer.concat(kept)
    return {
      bytes,
      signature: hmac && `t=${seconds},v1=${hmac.digest('hex')}`,
      open: () =>
        whole ??
        Readable.from(
          readAgain(() => openTaskResult(taskId)),
          { objectMode: false },
        ),
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#agent.destroy()
  }
}

/** Why a URL would not be called; undefined when it would. */
export function refuseUrl(url: string, { allowed, own }: Pick<DeliverOptions, 'allowed' | 'own'>): string | undefined {
  const refusal = allowed.refuseUrl(url)
  if (refusal !== undefined) return refusal
  return own.hasUrl(new URL(url)) ? 'it is an address of Polar itself' : undefined
}

interface Body {
  bytes: number
  signature: string | undefined
  open(): Buffer | Readable
}

/** Headers take visible ASCII; the rest is written as in a URL. */
function toHeader(text: string): string {
  return text.replaceAll(/[^\x21-\x24\x26-\x7e]/gu, encodeURIComponent)
}

/** The same for every try, by whichever server. */
export function deliveryIdOf({ id, taskId, url }: DueCallback): string {
  const hash = createHash('sha256').update(JSON.stringify([id, taskId, url]))
  return `dlv_${hash.digest('hex').slice(0, 32)}`
}

export function judge(status: number, retryAfter: unknown, now: number): Delivery {
  if (status >= 200 && status < 300) return { kind: 'delivered' }
  const error = `answered with ${status}`
  if (status === 408 || status === 425 || status === 429 || status >= 500) {
    const retryAfterMs = toDelayMs(retryAfter, now)
    return { kind: 'failed', error, isHostDown: false, ...(retryAfterMs !== undefined && { retryAfterMs }) }
  }
  if (status >= 300 && status < 400) return { kind: 'refused', error: `${error}: redirects are not followed` }
  return { kind: 'refused', error }
}

/** Seconds, or a date. */
function toDelayMs(header: unknown, now: number): number | undefined {
  if (typeof header !== 'string') return undefined
  if (/^\d{1,9}$/.test(header)) return Number(header) * 1000
  const date = Date.parse(header)
  return Number.isNaN(date) ? undefined : Math.max(date - now, 0)
}

async function* readAgain(open: () => Promise<AsyncIterable<Uint8Array> | undefined>): AsyncGenerator<Uint8Array> {
  const stream = await open()
  if (stream === undefined) throw new Error('the task went away while its result was sent')
  yield* stream
}

/** NVIDIA's trainer answers 200 with `{"ok": false}` to a result that it does not take. */
const NOT_TAKEN: Delivery = { kind: 'failed', error: 'answered with 200 and {"ok": false}', isHostDown: false }

function isRefusal(text: string): boolean {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && 'ok' in value && value.ok === false
  } catch {
    return false
  }
}

/** The beginning of the answer. Read to its end, if that takes little, so that the connection can be used again. */
async function readSome(
  body: AsyncIterable<Uint8Array> & { destroy(): unknown; on(event: 'error', call: () => void): unknown },
): Promise<string> {
  const chunks: Uint8Array[] = []
  body.on('error', () => {})
  const late = setTimeout(() => body.destroy(), ANSWER_TIMEOUT_MS)
  try {
    let bytes = 0
    for await (const chunk of body) {
      bytes += chunk.length
      if (bytes > MOST_ANSWER_BYTES) break
      chunks.push(chunk)
    }
  } catch {
    // Cut, or longer or shorter than it said.
  } finally {
    clearTimeout(late)
  }
  return Buffer.concat(chunks).toString()
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { code } = error as { code?: unknown }
  const what = error.name === 'TimeoutError' ? 'it took too long' : error.message
  return typeof code === 'string' && !what.includes(code) ? `${what} (${code})` : what
}
