/** The callers, in a separate process. One job at a time, each with a time limit and a count. */
import { setTimeout } from 'node:timers/promises'
import { Pool, type Dispatcher } from 'undici'
import { serveParent } from './child.ts'
import { createRequests, type RequestOptions } from './prompt.ts'

/** URL and key of a call. */
export interface Target {
  origin: string
  path: string
  key: string
  /** Additional headers. */
  headers?: Readonly<Record<string, string>>
}

/**
 * `closed`: a number of callers, each sending the next call as soon as it has its answer. `paced`: a call at a fixed rate,
 * independent of earlier answers; with `oneAtATime` it waits for the previous answer. `streams`: all open at the same time.
 */
export type LoadShape =
  | { kind: 'closed'; callers: number; seconds: number }
  | { kind: 'paced'; perSecond: number; seconds: number; oneAtATime: boolean }
  | { kind: 'streams'; count: number; spreadSeconds: number }

export interface LoadJob {
  /** Assigned in turn; a caller keeps its target. */
  targets: Target[]
  request: RequestOptions
  shape: LoadShape
}

export interface LoadResult {
  seconds: number
  calls: number
  /** Calls without a complete answer of status 200. */
  failed: number
  firstFailure?: string
  bytes: number
  latencyMs: number[]
  /** Until the first byte of the body. */
  firstByteMs: number[]
  /** Longest pause within each answer after its first byte. */
  gapMs: number[]
  /** Events of each streamed answer. */
  events: number[]
}

const MAX_CALLS = 200_000
const CALL_TIMEOUT_MS = 60_000

/** No request is sent twice in this process: a gateway may treat the second as a retry. */
let serial = 0

serveParent({}, { answer: (job) => run(job as LoadJob) })

async function run(job: LoadJob): Promise<LoadResult> {
  const result: LoadResult = {
    seconds: 0,
    calls: 0,
    failed: 0,
    bytes: 0,
    latencyMs: [],
    firstByteMs: [],
    gapMs: [],
    events: [],
  }
  const requests = createRequests(job.request)
  const pool = new Pool(job.targets[0]?.origin ?? '', {
    connections: 1024,
    pipelining: 1,
    headersTimeout: CALL_TIMEOUT_MS,
    bodyTimeout: CALL_TIMEOUT_MS,
  })
  let sent = 0
  const call = async (caller: number): Promise<void> => {
    sent += 1
    const target = job.targets[caller % job.targets.length]!
    await send(pool, target, requests(serial++), job.request.stream, result)
  }
  const start = performance.now()
  try {
    await shapes[job.shape.kind](job.shape as never, call, () => sent)
    result.seconds = (performance.now() - start) / 1000
  } finally {
    await pool.destroy()
  }
  return result
}

type Call = (caller: number) => Promise<void>
type ShapeOf<K extends LoadShape['kind']> = Extract<LoadShape, { kind: K }>

const shapes = {
  async closed({ callers, seconds }: ShapeOf<'closed'>, call: Call, sent: () => number): Promise<void> {
    const end = performance.now() + seconds * 1000
    const caller = async (_: unknown, i: number): Promise<void> => {
      while (performance.now() < end && sent() < MAX_CALLS) await call(i)
    }
    await Promise.all(Array.from({ length: callers }, caller))
  },

  async paced({ perSecond, seconds, oneAtATime }: ShapeOf<'paced'>, call: Call): Promise<void> {
    const start = performance.now()
    const underWay: Promise<void>[] = []
    for (let i = 0; i < perSecond * seconds; i++) {
      const waitMs = start + (i * 1000) / perSecond - performance.now()
      if (waitMs > 0) await setTimeout(waitMs)
      const called = call(i)
      underWay.push(called)
      if (oneAtATime) await called
      if (performance.now() - start > 4000 * seconds) break
    }
    await Promise.all(underWay)
  },

  async streams({ count, spreadSeconds }: ShapeOf<'streams'>, call: Call): Promise<void> {
    const caller = async (_: unknown, i: number): Promise<void> => {
      await setTimeout((i * spreadSeconds * 1000) / count)
      await call(i)
    }
    await Promise.all(Array.from({ length: count }, caller))
  },
}

/** One call with the parser's own callbacks: an expensive caller would hide the cost of the parties. */
function send(pool: Pool, target: Target, body: Buffer, stream: boolean, result: LoadResult): Promise<void> {
  const headers = { 'content-type': 'application/json', authorization: `Bearer ${target.key}`, ...target.headers }
  return new Promise((resolve) => {
    const reader = new AnswerReader(stream, result, resolve)
    pool.dispatch({ path: target.path, method: 'POST', headers, body }, reader)
  })
}

class AnswerReader implements Dispatcher.DispatchHandler {
  readonly #start = performance.now()
  readonly #stream: boolean
  readonly #result: LoadResult
  readonly #done: () => void
  #status = 0
  #lastDataAt = 0
  #longestGapMs = 0
  #events = 0
  #ending = ''

  constructor(stream: boolean, result: LoadResult, done: () => void) {
    this.#stream = stream
    this.#result = result
    this.#done = done
  }

  onRequestStart(): void {}

  onResponseStart(_controller: Dispatcher.DispatchController, status: number): void {
    this.#status = status
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    const now = performance.now()
    if (this.#lastDataAt === 0) this.#result.firstByteMs.push(now - this.#start)
    else this.#longestGapMs = Math.max(this.#longestGapMs, now - this.#lastDataAt)
    this.#lastDataAt = now
    this.#result.bytes += chunk.length
    if (this.#stream) this.#countEvents(chunk)
  }

  onResponseEnd(): void {
    const { latencyMs, gapMs, events } = this.#result
    latencyMs.push(performance.now() - this.#start)
    gapMs.push(this.#longestGapMs)
    if (this.#stream) events.push(this.#events)
    const isWhole = this.#status === 200 && (!this.#stream || this.#ending.endsWith('data: [DONE]\n\n'))
    this.#finish(isWhole ? undefined : `status ${this.#status}, or a stream without [DONE]`)
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    this.#finish(error.message)
  }

  #countEvents(chunk: Buffer): void {
    // An event ends with an empty line; its two line feeds may be in separate chunks.
    if (chunk[0] === LF && this.#ending.endsWith('\n')) this.#events += 1
    for (let at = chunk.indexOf(END_OF_EVENT); at !== -1; at = chunk.indexOf(END_OF_EVENT, at + 2)) this.#events += 1
    this.#ending = (this.#ending + chunk.toString('latin1', Math.max(0, chunk.length - 16))).slice(-16)
  }

  #finish(failure: string | undefined): void {
    this.#result.calls += 1
    if (failure !== undefined) {
      this.#result.failed += 1
      this.#result.firstFailure ??= failure
    }
    this.#done()
  }
}

const LF = 10
const END_OF_EVENT = '\n\n'
