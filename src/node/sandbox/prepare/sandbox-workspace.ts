import { rm } from 'node:fs/promises'
import { posix } from 'node:path'
import { onAbort } from '../../../lib/async/until-aborted.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { CommandResult, DownloadOptions, LeftOut, Workspace, WorkspaceCommand } from '../../../model/workspace.ts'
import { toPlainTree } from '../../../trajectory/grading/plain-tree.ts'
import type { Sandbox } from '../runtimes/runtime.ts'

const DEFAULT_OUTPUT_BYTES = 4 * 1024 * 1024

/** Adapts a sandbox for evaluators. All operations end when the signal is aborted. */
export function toWorkspace(sandbox: Sandbox, signal: AbortSignal): Workspace {
  return {
    workdir: sandbox.workdir,
    run: (command) => run(sandbox, command, signal),
    readFile: (path, options) => sandbox.readFile(path, options),
    writeFile: (path, data, options) => sandbox.writeFile(path, data, options),
    upload: (source, target) => sandbox.upload(source, target, signal),
    download: (source, target, options) => download(sandbox, { source, target, ...options }, signal),
  }
}

async function download(
  sandbox: Sandbox,
  { source, target, links = 'copy', ...limits }: DownloadOptions & { source: string; target: string },
  signal: AbortSignal,
): Promise<readonly LeftOut[]> {
  await sandbox.download(source, target, limits, signal)
  if (links === 'keep') return []
  try {
    const leftOut = await toPlainTree(target, { source: posix.resolve(sandbox.workdir, source), limits })
    const isLink = leftOut.some(({ path }) => path === '')
    if (isLink) throw new RolloutError('workspace.unsafe-file', `${source} is a symbolic link`)
    return leftOut
  } catch (error) {
    await rm(target, { recursive: true, force: true })
    throw error
  }
}

async function run(sandbox: Sandbox, command: WorkspaceCommand, signal: AbortSignal): Promise<CommandResult> {
  signal.throwIfAborted()
  const execution = await sandbox.exec({ outputBytes: DEFAULT_OUTPUT_BYTES, ...command, leftovers: 'end' })
  using _ = onAbort(signal, () => void execution.kill())
  const [result, stdout, stderr] = await Promise.all([
    execution.result,
    bytesOf(execution.output('stdout')),
    bytesOf(execution.output('stderr')),
  ])
  signal.throwIfAborted()
  return { ...result, stdout, stderr }
}

async function bytesOf(output: AsyncIterable<Buffer>): Promise<Buffer> {
  const pieces: Buffer[] = []
  for await (const piece of output) pieces.push(piece)
  return Buffer.concat(pieces)
}
