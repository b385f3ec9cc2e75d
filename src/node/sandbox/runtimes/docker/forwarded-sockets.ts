import { chmod, mkdir } from 'node:fs/promises'
import { createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import { scopeConnections } from '../../../../lib/async/fault-scope.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { SocketServer, SocketHandler } from '../../linux/network/sandbox-sockets.ts'
import type { Mount } from '../runtime.ts'
import type { ContainerEngine } from './container-engine.ts'
import { createExec, startExec } from './inside.ts'
import { readFrames } from './frames.ts'
import type { CommandProcesses, ProcessTracker } from './process-tracker.ts'

const NODE = '/.polar/node'
const SOCKETS = '/.polar/sockets'
const MAX_CONNECTIONS = 512
const READY_MS = 30_000

const forward = loadProgram(new URL('./forward.cjs', import.meta.url))

/**
 * OpenSockets into a network that we cannot enter: sockets in a folder that the container has too, and a process of ours in it
 * that leads to them. Takes a Node that runs on the image's libraries, and what it needs counts as the container's.
 */
export class ForwardedSockets implements AsyncDisposable {
  readonly #servers: Server[] = []
  readonly #sockets = new Set<Socket>()
  readonly #folder: string
  readonly #handlers: ReadonlyMap<number, SocketHandler>

  /** The folder must be out of others' reach, because the sockets in it are not. */
  static async create(folder: string, handlers: ReadonlyMap<number, SocketHandler>): Promise<ForwardedSockets> {
    const created = new ForwardedSockets(folder, handlers)
    await mkdir(folder, { mode: 0o755 })
    for (const [port, handler] of handlers) await created.#listen(join(folder, String(port)), handler)
    return created
  }

  private constructor(folder: string, handlers: ReadonlyMap<number, SocketHandler>) {
    this.#folder = folder
    this.#handlers = handlers
  }

  /** What the container needs for it. */
  get mounts(): Mount[] {
    return [
      { source: process.execPath, target: NODE, isReadOnly: true },
      { source: this.#folder, target: SOCKETS, isReadOnly: true },
    ]
  }

  /** Once the container runs. */
  async open(
    engine: ContainerEngine,
    container: { containerId: string; user: string; tracker: ProcessTracker },
  ): Promise<SocketServer[]> {
    const processes = await this.#forward(engine, container)
    await processes.leave()
    return [...this.#handlers.keys()].map((port) => ({ port, close: () => void this[Symbol.asyncDispose]() }))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of this.#servers) server.close()
    for (const socket of this.#sockets) socket.destroy()
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
    let said = ''
    for await (const { data } of readFrames(socket)) {
      said = (said + data.toString('latin1')).slice(-500)
      if (said.includes('ready')) break
    }
    clearTimeout(timer)
    socket.destroy()
    if (said.includes('ready')) return await tracker.open({ execId, insidePid: 0, mayLeave: true })
    throw new RolloutError('runtime.start-failed', `Cannot open the sandbox's socket with ${process.execPath}: ${said}`)
  }

  async #listen(path: string, handler: SocketHandler): Promise<void> {
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: handler.isPaused ?? false }, (socket) => {
      this.#sockets.add(socket)
      socket.on('error', () => socket.destroy())
      socket.once('close', () => this.#sockets.delete(socket))
      handler.accept(socket)
    })
    server.maxConnections = MAX_CONNECTIONS
    scopeConnections(server)
    // A connection that cannot be accepted: its sandbox tries again.
    server.on('error', () => {})
    this.#servers.push(server)
    await new Promise<void>((resolve, reject) => server.once('error', reject).listen(path, resolve))
    await chmod(path, 0o666)
  }
}
