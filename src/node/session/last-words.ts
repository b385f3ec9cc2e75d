import type { Execution } from '../sandbox/runtimes/runtime.ts'

const TOLD_BYTES = 2000
/** What an execution keeps of each stream unless told otherwise. */
const USUAL_KEPT_BYTES = 16 * 1024 * 1024

/** The end of what a command wrote, of its errors if there were any; empty when it said nothing. For people. */
export async function lastWords(execution: Execution, keptBytes = USUAL_KEPT_BYTES): Promise<string> {
  const { stdoutBytes, stderrBytes } = await execution.result
  return (
    (await endOf(execution, 'stderr', Math.min(stderrBytes, keptBytes))) ||
    (await endOf(execution, 'stdout', Math.min(stdoutBytes, keptBytes)))
  )
}

async function endOf(execution: Execution, stream: 'stdout' | 'stderr', bytes: number): Promise<string> {
  const pieces: Buffer[] = []
  for await (const piece of execution.output(stream, Math.max(0, bytes - TOLD_BYTES))) pieces.push(piece)
  return Buffer.concat(pieces).toString('utf8').trim()
}
