import type { ChildProcess } from 'node:child_process'
import { closeSync, constants, openSync } from 'node:fs'
import { createCleanSpawn } from './clean-spawn.ts'
import type { FromSpawner, RemoteStdio, ToSpawner } from './spawner.ts'

/** More than any message of a starting process; further output is dropped. */
const RELAYED_BYTES = 256 * 1024

/** Starts and kills processes as requested, and reports their output and exit. */
export function startChildren(report: (message: FromSpawner) => void): (message: ToSpawner) => void {
  const children = new Map<number, ChildProcess>()
  const spawn = createCleanSpawn()

  function start({ id, file, args, env, stdio }: Extract<ToSpawner, { type: 'spawn' }>): void {
    const opened: number[] = []
    try {
      const child = spawn(file, args, { env, detached: true, stdio: stdio.map((each) => toStdio(each, opened)) })
      children.set(id, child)
      child.once('spawn', () => report({ type: 'spawned', id, pid: child.pid! }))
      child.once('error', (error) => end({ type: 'failed', id, message: error.message }))
      child.once('exit', (code, signal) => end({ type: 'exited', id, code, signal }))
      relay(id, 'stdout', child)
      relay(id, 'stderr', child)
    } catch (error) {
      end({ type: 'failed', id, message: error instanceof Error ? error.message : String(error) })
    } finally {
      for (const fd of opened) closeSync(fd)
    }
  }

  function relay(id: number, stream: 'stdout' | 'stderr', child: ChildProcess): void {
    let left = RELAYED_BYTES
    child[stream]?.setEncoding('utf8').on('data', (text: string) => {
      if (left > 0) report({ type: 'output', id, stream, text: text.slice(0, left) })
      left -= text.length
    })
  }

  function end(message: Extract<FromSpawner, { type: 'exited' | 'failed' }>): void {
    children.delete(message.id)
    // The last output must be reported before the exit.
    setImmediate(() => report(message))
  }

  return (message) => {
    if (message.type === 'kill') children.get(message.id)?.kill(message.signal)
    else start(message)
  }
}

function toStdio(stdio: RemoteStdio, opened: number[]): 'ignore' | 'pipe' | number {
  if (typeof stdio === 'string') return stdio
  const fd = openSync(stdio.path, stdio.isRead ? constants.O_RDONLY : constants.O_WRONLY)
  opened.push(fd)
  return fd
}
