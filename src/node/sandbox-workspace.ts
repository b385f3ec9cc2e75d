import type { CommandResult, Workspace, WorkspaceCommand } from '../model/workspace.ts'
import type { Sandbox } from './runtimes/runtime.ts'

const USUAL_OUTPUT_BYTES = 4 * 1024 * 1024

/** A sandbox as evaluators see it. All that is under way ends when the signal fires. */
export function toWorkspace(sandbox: Sandbox, signal: AbortSignal): Workspace {
  return {
    workdir: sandbox.workdir,
    run: (command) => run(sandbox, command, signal),
    readFile: (path, options) => sandbox.readFile(path, options),
    writeFile: (path, data, options) => sandbox.writeFile(path, data, options),
    upload: (source, target) => sandbox.upload(source, target, signal),
    download: (source, target, limits) => sandbox.download(source, target, limits, signal),
  }
}

async function run(sandbox: Sandbox, command: WorkspaceCommand, signal: AbortSignal): Promise<CommandResult> {
  signal.throwIfAborted()
  const execution = await sandbox.exec({ outputBytes: USUAL_OUTPUT_BYTES, ...command, leftovers: 'end' })
  const kill = (): void => void execution.kill()
  signal.addEventListener('abort', kill, { once: true })
  try {
    const [result, stdout, stderr] = await Promise.all([
      execution.result,
      bytesOf(execution.output('stdout')),
      bytesOf(execution.output('stderr')),
    ])
    signal.throwIfAborted()
    return { ...result, stdout, stderr }
  } finally {
    signal.removeEventListener('abort', kill)
  }
}

async function bytesOf(output: AsyncIterable<Buffer>): Promise<Buffer> {
  const pieces: Buffer[] = []
  for await (const piece of output) pieces.push(piece)
  return Buffer.concat(pieces)
}
