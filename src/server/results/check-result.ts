import { once } from 'node:events'
import { availableParallelism } from 'node:os'
import { extname } from 'node:path'
import { Worker } from 'node:worker_threads'
import { createLimit } from '../../lib/async/limit.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { ResultAnswer, ResultJob } from './check-worker.ts'
import { type PostedReading, readPostedResult } from './posted-result.ts'
import { findResultProblem, MOST_RESULT_BYTES, type ResultProblem } from './result-problem.ts'

export interface ResultChecker extends AsyncDisposable {
  /**
   * Throws `request.malformed` (422) for what is not the result of this very session, 413 for what is too long. `param`:
   * where in the request it is, or is named.
   */
  check(compressed: Uint8Array, outcome: SessionOutcome, param: string): Promise<void>
  /** Reads a posted result. The memory of a long `text` passes to a thread: the caller must not read it afterwards. */
  read(text: Buffer<ArrayBuffer>): Promise<PostedReading>
}

/** What is shorter than this, decompressed, is looked at here: it takes less time than to hand it over. */
const SHORT_BYTES = 256 * 1024
/** A result of the longest kind, parsed, and some more; a thread that needs more than this ends alone. */
const HEAP_MB = 4096
const MOST_THREADS = 4

/**
 * Looks at every result before it is accepted: all of its numbers, so that a trainer need not. Long ones take long, so
 * they go to threads of their own, which are started when they are first needed.
 */
export function createResultChecker(): ResultChecker {
  const count = Math.min(Math.max(availableParallelism() >> 2, 1), MOST_THREADS)
  const limit = createLimit(count)
  const idle: Worker[] = []
  const all = new Set<Worker>()

  const start = (): Worker => {
    const entry = new URL(`./check-worker${extname(import.meta.url)}`, import.meta.url)
    const worker = new Worker(entry, { execArgv: [], resourceLimits: { maxOldGenerationSizeMb: HEAP_MB } })
    worker.unref()
    worker.on('error', () => undefined)
    worker.on('exit', () => all.delete(worker))
    all.add(worker)
    return worker
  }
  const inThread = async <Job extends ResultJob>(job: Job, transfer: ArrayBuffer[]): Promise<ResultAnswer<Job>> => {
    const worker = idle.pop() ?? start()
    worker.postMessage(job, transfer)
    // Rejects when the thread ends instead, as one does that has no memory left.
    const [answer] = (await once(worker, 'message')) as [ResultAnswer<Job>]
    idle.push(worker)
    return answer
  }
  return {
    async check(compressed, outcome, param) {
      const { sessionId, attempt, taskId, nodeId, status } = outcome
      const identity = { sessionId, attempt, taskId, nodeId, status }
      const problem = await findResultProblem(compressed, identity, SHORT_BYTES)
      if (problem === undefined) return
      if (problem !== 'too-long') throw toError(problem, outcome, param)
      const job = { kind: 'check', compressed, identity } as const
      const found = await limit(() => inThread(job, [])).catch(() => 'too-long' as const)
      if (found !== undefined) throw toError(found, outcome, param)
    },
    async read(text) {
      if (text.length <= SHORT_BYTES) return readPostedResult(text)
      const isWhole = text.byteLength === text.buffer.byteLength
      const job = { kind: 'read', text } as const
      return limit(() => inThread(job, isWhole ? [text.buffer] : [])).catch(() => ({
        kind: 'failed',
        failure: TOO_LONG,
      }))
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([...all].map((worker) => worker.terminate()))
    },
  }
}

/** Of a posted result that needs more memory than a thread has. */
const TOO_LONG = new RolloutError(
  'request.too-large',
  'The result needs more memory to read than the server has for one; let the task build fewer or shorter traces.',
  { param: 'body' },
).failure

function toError(problem: ResultProblem, { sessionId, attempt }: SessionOutcome, param: string): RolloutError {
  const which = `The result of attempt ${attempt} at session ${sessionId}`
  if (problem !== 'too-long') {
    return new RolloutError('request.malformed', `${which} ${problem.wrong}.`, { status: 422, param })
  }
  const message = `${which} is longer than the ${MOST_RESULT_BYTES} bytes that a server looks at; let the task build fewer or shorter traces.`
  return new RolloutError('request.too-large', message, { param })
}
