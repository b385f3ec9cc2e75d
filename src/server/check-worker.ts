import { parentPort } from 'node:worker_threads'
import { findResultProblem, type ResultIdentity } from './result-problem.ts'

/** A thread that does nothing but look at results, one after the other. */
parentPort?.on('message', (job: { compressed: Uint8Array; identity: ResultIdentity }) => {
  void findResultProblem(job.compressed, job.identity).then((problem) => {
    // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
    parentPort?.postMessage(problem)
  })
})
