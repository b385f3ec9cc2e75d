import type { Execution } from '../sandbox/runtimes/runtime.ts'

const MAX_BYTES = 2000
/** The default size limit of each stream of an execution. */
const DEFAULT_KEPT_BYTES = 16 * 1024 * 1024

/** Returns the end of a command's stderr, or of its stdout if stderr is empty; for messages. */
export async function readOutputEnd(execution: Execution, keptBytes = DEFAULT_KEPT_BYTES): Promise<string> {
  const { stdoutBytes, stderrBytes } = await execution.result
  return (
    (await endOf(execution, 'stderr', Math.min(stderrBytes, keptBytes))) ||
    (await endOf(execution, 'stdout', Math.min(stdoutBytes, keptBytes)))
  )
}

async function endOf(execution: Execution, stream: 'stdout' | 'stderr', bytes: number): Promise<string> {
  const pieces: Buffer[] = []
  for await (const piece of execution.output(stream, Math.max(0, bytes - MAX_BYTES))) pieces.push(piece)
  return Buffer.concat(pieces).toString('utf8').trim()
}
