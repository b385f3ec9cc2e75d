import { chmod, mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { listenAtPath, type SocketHandler, type SocketServer } from '../../linux/network/sandbox-sockets.ts'
import type { Mount } from '../runtime.ts'
import type { ContainerEngine } from './container-engine.ts'
import { createExec, startExec } from './inside.ts'
import { readFrames } from './frames.ts'
import type { CommandProcesses, ProcessTracker } from './process-tracker.ts'

const NODE = '/.polar/node'
const SOCKETS = '/.polar/sockets'
const READY_MS = 30_000

const forward = loadProgram(new URL('./forward.cjs', import.meta.url))

/**
 * Sockets of a network namespace that we cannot enter: unix sockets in a folder that is mounted into the container, and
 * a forwarding process in the container. Needs a Node that works with the image's libraries; its resource usage counts
 * as the container's.
 */
export class ForwardedSockets implements AsyncDisposable {
  readonly #closers: (() => void)[] = []
  readonly #folder: string
  readonly #handlers: ReadonlyMap<number, SocketHandler>

  /** Other users must not be able to enter the folder, because the sockets in it are writable for all. */
  static async create(folder: string, handlers: ReadonlyMap<number, SocketHandler>): Promise<ForwardedSockets> {
    const created = new ForwardedSockets(folder, handlers)
    await mkdir(folder, { mode: 0o755 })
    for (const [port, handler] of handlers) {
      const path = join(folder, String(port))
      created.#closers.push(await listenAtPath(path, handler))
      await chmod(path, 0o666)
    }
    return created
  }

  private constructor(folder: string, handlers: ReadonlyMap<number, SocketHandler>) {
    this.#folder = folder
    this.#handlers = handlers
  }

  /** Mounts that the container needs. */
  get mounts(): Mount[] {
    return [
      { source: process.execPath, target: NODE, isReadOnly: true },
      { source: this.#folder, target: SOCKETS, isReadOnly: true },
    ]
  }

  /** Starts the forwarding process in the running container. */
  async open(
    engine: ContainerEngine,
    container: { containerId: string; user: string; tracker: ProcessTracker },
  ): Promise<SocketServer[]> {
    const processes = await this.#forward(engine, container)
    await processes.leave()
    return [...this.#handlers.keys()].map((port) => ({ port, close: () => void this[Symbol.asyncDispose]() }))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const close of this.#closers) close()
  }

  async #forward(
    engine: ContainerEngine,
    { containerId, user, tracker }: { containerId: string; user: string; tracker: ProcessTracker },
  ): Promise<CommandProcesses> {
    using _ = await tracker.expect()
    const command = [NODE, '-e', forward(), SOCKETS, ...[...this.#handlers.keys()].map(String)]
    const execId = await createExec(engine, containerId, { command, user })
    const socket = await startExec(engine, execId)
    socket.on('error', () => socket.destroy())
    const timer = setTimeout(() => socket.destroy(), READY_MS)
    let output = ''
    for await (const { data } of readFrames(socket)) {
      output = (output + data.toString('latin1')).slice(-500)
      if (output.includes('ready')) break
    }
    clearTimeout(timer)
    socket.destroy()
    if (output.includes('ready')) return await tracker.open({ execId, insidePid: 0, mayLeave: true })
    throw new RolloutError(
      'runtime.start-failed',
      `Cannot open the sandbox's socket with ${process.execPath}: ${output}`,
    )
  }
}
