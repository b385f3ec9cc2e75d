import { once } from 'node:events'
import { availableParallelism } from 'node:os'
import { extname } from 'node:path'
import { Worker } from 'node:worker_threads'
import { createLimit } from '../lib/limit.ts'
import { RolloutError } from '../model/failure.ts'
import type { SessionOutcome } from '../model/session-outcome.ts'
import { findResultProblem, MOST_RESULT_BYTES, type ResultIdentity, type ResultProblem } from './result-problem.ts'

/** Throws `request.malformed` (422) for what is not the result of this very session, 413 for what is too long. */
export interface ResultChecker extends AsyncDisposable {
  /** `param`: where in the request it is, or is named. */
  check(compressed: Uint8Array, outcome: SessionOutcome, param: string): Promise<void>
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
  const inThread = async (compressed: Uint8Array, identity: ResultIdentity): Promise<ResultProblem | undefined> => {
    const worker = idle.pop() ?? start()
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
    worker.postMessage({ compressed, identity })
    // Rejects when the thread ends instead, as one does that has no memory left.
    const [problem] = (await once(worker, 'message')) as [ResultProblem | undefined]
    idle.push(worker)
    return problem
  }
  return {
    async check(compressed, outcome, param) {
      const { sessionId, attempt, taskId, nodeId, status } = outcome
      const identity = { sessionId, attempt, taskId, nodeId, status }
      const problem = await findResultProblem(compressed, identity, SHORT_BYTES)
      if (problem === undefined) return
      if (problem !== 'too-long') throw toError(problem, outcome, param)
      const found = await limit(() => inThread(compressed, identity)).catch(() => 'too-long' as const)
      if (found !== undefined) throw toError(found, outcome, param)
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([...all].map((worker) => worker.terminate()))
    },
  }
}

function toError(problem: ResultProblem, { sessionId, attempt }: SessionOutcome, param: string): RolloutError {
  const which = `The result of attempt ${attempt} at session ${sessionId}`
  if (problem !== 'too-long') {
    return new RolloutError('request.malformed', `${which} ${problem.wrong}.`, { status: 422, param })
  }
  const message = `${which} is longer than the ${MOST_RESULT_BYTES} bytes that a server looks at; let the task build fewer or shorter traces.`
  return new RolloutError('request.too-large', message, { param })
}
