import { once } from 'node:events'
import { availableParallelism } from 'node:os'
import { extname } from 'node:path'
import { Worker } from 'node:worker_threads'
import { createLimit } from '../../lib/async/limit.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { ResultAnswer, ResultJob } from './check-worker.ts'
import { type PostedReading, readPostedResult } from './posted-result.ts'
import { findResultProblem, MAX_RESULT_BYTES, type ResultProblem } from './result-problem.ts'

export interface ResultChecker extends AsyncDisposable {
  /**
   * Throws `request.malformed` (422) if the bytes are not the result of this session, 413 if they are too long. `param`: field
   * of the request that holds or names the result.
   */
  check(compressed: Uint8Array, outcome: SessionOutcome, param: string): Promise<void>
  /** Parses a posted result. The memory of a long `text` is transferred to a thread: the caller must not read it afterwards. */
  read(text: Buffer<ArrayBuffer>): Promise<PostedReading>
}

/** Results up to this decompressed size are checked in this thread: passing them to another takes longer. */
const SHORT_BYTES = 256 * 1024
/** Enough for the largest result when parsed; a thread that needs more ends without affecting the server. */
const HEAP_MB = 4096
const MAX_THREADS = 4

/**
 * Validates every result before it is accepted, so that trainers need not. Long results are checked in worker threads, which
 * start on first use.
 */
export function createResultChecker(): ResultChecker {
  const count = Math.min(Math.max(availableParallelism() >> 2, 1), MAX_THREADS)
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
    // Rejects if the thread ends, for example because it is out of memory.
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

/** A posted result that needs more memory than a thread has. */
const TOO_LONG = new RolloutError(
  'request.too-large',
  'The result needs more memory than the server allows for one result; let the task build fewer or shorter traces.',
  { param: 'body' },
).failure

function toError(problem: ResultProblem, { sessionId, attempt }: SessionOutcome, param: string): RolloutError {
  const which = `The result of attempt ${attempt} of session ${sessionId}`
  if (problem !== 'too-long') {
    return new RolloutError('request.malformed', `${which} ${problem.wrong}.`, { status: 422, param })
  }
  const message = `${which} is longer than ${MAX_RESULT_BYTES} bytes; let the task build fewer or shorter traces.`
  return new RolloutError('request.too-large', message, { param })
}
