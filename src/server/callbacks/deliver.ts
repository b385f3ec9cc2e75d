import { createHash, createHmac } from 'node:crypto'
import { isIP } from 'node:net'
import { Readable } from 'node:stream'
import { Agent, request } from 'undici'
import { parseJsonObject } from '../../lib/json/json-text.ts'
import { forbiddenIn, guardedConnect } from '../../lib/net/guarded-connect.ts'
import { OUTBOUND_HEADER } from '../../lib/net/outbound-header.ts'
import type { OwnAddresses } from '../../lib/net/own-addresses.ts'
import type { DueCallback } from '../../store/dispatch/port.ts'
import type { AllowedHosts } from './allowed-hosts.ts'

/** Outcome of one try. `refused`: a retry will most likely have the same outcome. */
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
  /** Resolves all addresses of a host name. Default: the system's resolver. */
  resolve?: (hostname: string) => Promise<string[]>
  openTaskResult: (taskId: string) => Promise<AsyncIterable<Uint8Array> | undefined>
}

/** Bodies up to this size stay in memory between signing and sending; longer ones are read twice. */
const MAX_BUFFERED_BYTES = 4 * 2 ** 20
/** Longer responses are not read to their end. */
const MAX_RESPONSE_BYTES = 64 * 1024
const RESPONSE_TIMEOUT_MS = 1000

/** Sends callbacks over HTTP. */
export class CallbackHttp implements AsyncDisposable {
  readonly #options: DeliverOptions
  readonly #agent: Agent

  constructor(options: DeliverOptions) {
    this.#options = options
    const { allowed, own, timeoutMs, connectTimeoutMs, connectionsPerHost } = options
    this.#agent = new Agent({
      connect: guardedConnect({
        refuse(hostname, port, addresses) {
          const ownAddress = addresses.find((address) => own.has(address, port))
          if (ownAddress !== undefined) return `${hostname}:${port} is an address of Polar itself`
          // An IP address in the URL was already checked with the URL.
          return isIP(hostname) === 0 ? allowed.refuseAddresses(hostname, addresses) : undefined
        },
        timeoutMs: connectTimeoutMs,
        resolve: options.resolve,
      }),
      connections: connectionsPerHost,
      pipelining: 1,
      headersTimeout: timeoutMs,
      bodyTimeout: timeoutMs,
      maxHeaderSize: 16 * 1024,
    })
  }

  /** Throws only if the signal is aborted. */
  async deliver(due: DueCallback, signal: AbortSignal): Promise<Delivery> {
    const refusal = refuseUrl(due.url, this.#options)
    if (refusal !== undefined) return { kind: 'refused', error: `host is not allowed: ${refusal}` }
    let body: Body | undefined
    try {
      body = await this.#prepare(due.taskId)
    } catch (error) {
      return { kind: 'failed', error: `the result could not be read: ${describe(error)}`, isHostDown: false }
    }
    if (body === undefined) return { kind: 'refused', error: 'the task runs again or was deleted' }
    try {
      return await this.#send(due, body, AbortSignal.any([signal, AbortSignal.timeout(this.#options.timeoutMs)]))
    } catch (error) {
      signal.throwIfAborted()
      const forbidden = forbiddenIn(error)
      if (forbidden !== undefined) return { kind: 'refused', error: `host is not allowed: ${forbidden.message}` }
      return { kind: 'failed', error: describe(error), isHostDown: true }
    }
  }

  async #send(due: DueCallback, body: Body, signal: AbortSignal): Promise<Delivery> {
    const delivery = deliveryIdOf(due)
    // Redirects are not followed: they would bypass the list of allowed hosts.
    const response = await request(due.url, {
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
    const text = await readSome(response.body)
    const judged = judge(response.statusCode, response.headers['retry-after'], this.#options.now())
    return judged.kind === 'delivered' && parseJsonObject(text)?.['ok'] === false ? NOT_ACCEPTED : judged
  }

  /** Reads the whole body once, for its length and signature. */
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
      if (bytes > MAX_BUFFERED_BYTES) kept = undefined
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

/** Reason why a URL is not allowed; undefined if it is. */
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

/** Headers hold only visible ASCII; other characters are percent-encoded. */
function toHeader(text: string): string {
  return text.replaceAll(/[^\x21-\x24\x26-\x7e]/gu, encodeURIComponent)
}

/** The same for every try of every server. */
export function deliveryIdOf({ id, taskId, url }: DueCallback): string {
  const hash = createHash('sha256').update(JSON.stringify([id, taskId, url]))
  return `dlv_${hash.digest('hex').slice(0, 32)}`
}

export function judge(status: number, retryAfter: unknown, now: number): Delivery {
  if (status >= 200 && status < 300) return { kind: 'delivered' }
  const error = `responded with ${status}`
  if (status === 408 || status === 425 || status === 429 || status >= 500) {
    const retryAfterMs = toDelayMs(retryAfter, now)
    return { kind: 'failed', error, isHostDown: false, retryAfterMs }
  }
  if (status >= 300 && status < 400) return { kind: 'refused', error: `${error}: redirects are not followed` }
  return { kind: 'refused', error }
}

/** The header holds seconds or a date. */
function toDelayMs(header: unknown, now: number): number | undefined {
  if (typeof header !== 'string') return undefined
  if (/^\d{1,9}$/.test(header)) return Number(header) * 1000
  const date = Date.parse(header)
  return Number.isNaN(date) ? undefined : Math.max(date - now, 0)
}

async function* readAgain(open: () => Promise<AsyncIterable<Uint8Array> | undefined>): AsyncGenerator<Uint8Array> {
  const stream = await open()
  if (stream === undefined) throw new Error('the task was deleted while its result was sent')
  yield* stream
}

/** NVIDIA's trainer responds with 200 and `{"ok": false}` to a result that it does not accept. */
const NOT_ACCEPTED: Delivery = { kind: 'failed', error: 'responded with 200 and {"ok": false}', isHostDown: false }

/** Reads the start of the response; to its end if it is short, so that the connection can be reused. */
async function readSome(
  body: AsyncIterable<Uint8Array> & { destroy(): unknown; on(event: 'error', call: () => void): unknown },
): Promise<string> {
  const chunks: Uint8Array[] = []
  body.on('error', () => {})
  const late = setTimeout(() => body.destroy(), RESPONSE_TIMEOUT_MS)
  try {
    let bytes = 0
    for await (const chunk of body) {
      bytes += chunk.length
      if (bytes > MAX_RESPONSE_BYTES) break
      chunks.push(chunk)
    }
  } catch {
    // The response was cut, or its length did not match the header.
  } finally {
    clearTimeout(late)
  }
  return Buffer.concat(chunks).toString()
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { code } = error as { code?: unknown }
  const what = error.name === 'TimeoutError' ? 'time limit exceeded' : error.message
  return typeof code === 'string' && !what.includes(code) ? `${what} (${code})` : what
}
