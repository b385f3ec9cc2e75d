import { parentPort } from 'node:worker_threads'
import { type PostedReading, readPostedResult } from './posted-result.ts'
import { findResultProblem, type ResultIdentity, type ResultProblem } from './result-problem.ts'

/** Work for one thread: check a compressed result, or parse a posted one. */
export type ResultJob =
  | { kind: 'check'; compressed: Uint8Array; identity: ResultIdentity }
  | { kind: 'read'; text: Uint8Array<ArrayBuffer> }

export type ResultAnswer<Job extends ResultJob> = Job extends { kind: 'check' }
  ? ResultProblem | undefined
  : PostedReading

parentPort?.on('message', (job: ResultJob) => {
  void answer(job)
})

async function answer(job: ResultJob): Promise<void> {
  if (job.kind === 'check') {
    post(await findResultProblem(job.compressed, job.identity))
    return
  }
  post(await readPostedResult(Buffer.from(job.text.buffer, job.text.byteOffset, job.text.byteLength)))
}

function post(message: ResultProblem | PostedReading | undefined): void {
  // oxlint-disable-next-line unicorn/require-post-message-target-origin -- a thread has no origin
  parentPort?.postMessage(message)
}
