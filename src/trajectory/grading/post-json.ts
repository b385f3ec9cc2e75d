import { setTimeout as sleep } from 'node:timers/promises'
import type { Agent, Dispatcher } from 'undici'
import { forbiddenIn, guardedConnect } from '../../lib/net/guarded-connect.ts'
import { OUTBOUND_HEADER } from '../../lib/net/outbound-header.ts'
import { RolloutError } from '../../model/failure.ts'
import { undici } from '../../lib/net/undici.ts'

export interface JsonPost {
  url: URL
  /** Called for each attempt, so that a signature can contain the time. */
  headers(): Readonly<Record<string, string>>
  body: string
  /** Limit of one attempt. */
  timeoutMs: number
  /** Attempts after the first. */
  maxRetries: number
  /** Delay before the first retry. Doubles up to 30 s. */
  backoffMs: number
  /** Maximum size of the answer. */
  maxBytes: number
  signal: AbortSignal
  /** Whether a connection to this address is allowed. Absent: allowed. */
  mayConnect?: ((address: string, port: number) => boolean) | undefined
}

export interface JsonAnswer {
  status: number
  text: string
  attempts: number
}

const CONNECT_TIMEOUT_MS = 10_000
const LONGEST_BACKOFF_MS = 30_000
const SHOWN_CHARS = 500

/**
 * Posts JSON to a grading service. Retries after a failed connection, a timeout, 408, 429 and 5xx. Returns any other answer
 * that is not a redirect, whatever its status. Throws `evaluator.crashed` or `evaluator.timeout`.
 */
export async function postJson(post: JsonPost): Promise<JsonAnswer> {
  await using owned = new AsyncDisposableStack()
  const agent = new (undici().Agent)({
    headersTimeout: post.timeoutMs,
    bodyTimeout: post.timeoutMs,
    connections: 1,
    connect: guardedConnect({
      refuse: (_, port, addresses) =>
        addresses.every((address) => post.mayConnect?.(address, port) ?? true)
          ? undefined
          : 'its address may not be called from this node',
      timeoutMs: CONNECT_TIMEOUT_MS,
    }),
  })
  owned.defer(() => agent.destroy())
  for (let attempt = 1; ; attempt++) {
    const outcome = await tryOnce(agent, post)
    if ('status' in outcome) return { ...outcome, attempts: attempt }
    if (attempt > post.maxRetries) {
      const often = attempt === 1 ? '' : ` after ${attempt} attempts`
      const { code, problem, cause } = outcome
      throw new RolloutError(code, `${shownUrl(post.url)} ${problem}${often}`, { cause })
    }
    const backoff = Math.min(outcome.retryAfterMs ?? post.backoffMs * 2 ** (attempt - 1), LONGEST_BACKOFF_MS)
    await sleep(backoff, undefined, { signal: post.signal })
  }
}

interface TemporaryFailure {
  code: 'evaluator.crashed' | 'evaluator.timeout'
  problem: string
  retryAfterMs?: number
  cause?: unknown
}

async function tryOnce(agent: Agent, post: JsonPost): Promise<Omit<JsonAnswer, 'attempts'> | TemporaryFailure> {
  post.signal.throwIfAborted()
  const timeout = AbortSignal.timeout(post.timeoutMs)
  try {
    const response = await agent.request({
      origin: post.url.origin,
      path: post.url.pathname + post.url.search,
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        accept: 'application/json',
        [OUTBOUND_HEADER]: 'evaluator',
        ...post.headers(),
      },
      body: post.body,
      signal: AbortSignal.any([post.signal, timeout]),
    })
    const { statusCode: status } = response
    const text = await readText(response, post)
    if (status >= 300 && status < 400) {
      throw new RolloutError(
        'evaluator.crashed',
        `${shownUrl(post.url)} answered with a redirect (${status}), which is not followed. Configure the target URL.`,
      )
    }
    if (status !== 408 && status !== 429 && status < 500) return { status, text }
    const retryAfter = Number(response.headers['retry-after'] ?? Number.NaN)
    return {
      code: 'evaluator.crashed',
      problem: `answered ${status}: ${text.slice(0, SHOWN_CHARS) || 'nothing'}`,
      retryAfterMs: retryAfter >= 0 ? retryAfter * 1000 : undefined,
    }
  } catch (cause) {
    post.signal.throwIfAborted()
    if (cause instanceof RolloutError) throw cause
    const forbidden = forbiddenIn(cause)
    if (forbidden !== undefined)
      throw new RolloutError('config.invalid', `${shownUrl(post.url)} is not called: ${forbidden.message}.`, { cause })
    const { name = '', code = '', message = '' } = cause as { name?: string; code?: string; message?: string }
    if (timeout.aborted || name === 'TimeoutError' || code.endsWith('_TIMEOUT')) {
      return { code: 'evaluator.timeout', problem: `did not answer within ${post.timeoutMs / 1000} s`, cause }
    }
    return { code: 'evaluator.crashed', problem: `cannot be reached: ${message || code || name}`, cause }
  }
}

async function readText({ body }: Dispatcher.ResponseData, { url, maxBytes }: JsonPost): Promise<string> {
  const pieces: Buffer[] = []
  let size = 0
  for await (const piece of body as AsyncIterable<Buffer>) {
    size += piece.length
    if (size > maxBytes) {
      throw new RolloutError('evaluator.crashed', `${shownUrl(url)} answered with more than ${maxBytes} bytes.`)
    }
    pieces.push(piece)
  }
  return Buffer.concat(pieces).toString('utf8')
}

/** Returns a URL without the parts that may be secret: user, password and query. */
export function shownUrl({ origin, pathname }: URL): string {
  return origin + pathname
}
