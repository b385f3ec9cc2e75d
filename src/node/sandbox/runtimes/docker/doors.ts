import { chmod, mkdir } from 'node:fs/promises'
import { createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import { scopeConnections } from '../../../../lib/async/fault-scope.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { DoorServer, DoorUse } from '../../linux/network/sandbox-sockets.ts'
import type { Mount } from '../runtime.ts'
import type { Engine } from './engine.ts'
import { createExec, startExec } from './inside.ts'
import { readFrames } from './frames.ts'
import type { Room, Rooms } from './rooms.ts'

const NODE = '/.polar/node'
const SOCKETS = '/.polar/doors'
const MAX_CONNECTIONS = 512
const READY_MS = 30_000

const forward = loadProgram(new URL('./forward.cjs', import.meta.url))

/**
 * Doors into a network that we cannot enter: sockets in a folder that the container has too, and a process of ours in it
 * that leads to them. Takes a Node that runs on the image's libraries, and what it needs counts as the container's.
 */
export class ForwardedDoors implements AsyncDisposable {
  readonly #servers: Server[] = []
  readonly #sockets = new Set<Socket>()
  readonly #folder: string
  readonly #doors: ReadonlyMap<number, DoorUse>

  /** The folder must be out of others' reach, because the sockets in it are not. */
  static async create(folder: string, doors: ReadonlyMap<number, DoorUse>): Promise<ForwardedDoors> {
    const created = new ForwardedDoors(folder, doors)
    await mkdir(folder, { mode: 0o755 })
    for (const [port, door] of doors) await created.#listen(join(folder, String(port)), door)
    return created
  }

  private constructor(folder: string, doors: ReadonlyMap<number, DoorUse>) {
    this.#folder = folder
    this.#doors = doors
  }

  /** What the container needs for it. */
  get mounts(): Mount[] {
    return [
      { source: process.execPath, target: NODE, isReadOnly: true },
      { source: this.#folder, target: SOCKETS, isReadOnly: true },
    ]
  }

  /** Once the container runs. */
  async open(engine: Engine, container: { containerId: string; user: string; rooms: Rooms }): Promise<DoorServer[]> {
    const room = await this.#forward(engine, container)
    await room.leave()
    return [...this.#doors.keys()].map((port) => ({ port, close: () => void this[Symbol.asyncDispose]() }))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const server of this.#servers) server.close()
    for (const socket of this.#sockets) socket.destroy()
  }

  async #forward(
    engine: Engine,
    { containerId, user, rooms }: { containerId: string; user: string; rooms: Rooms },
  ): Promise<Room> {
    using _ = await rooms.expect()
    const command = [NODE, '-e', forward(), SOCKETS, ...[...this.#doors.keys()].map(String)]
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
    if (said.includes('ready')) return await rooms.open({ execId, insidePid: 0, mayLeave: true })
    throw new RolloutError('runtime.start-failed', `Cannot open the sandbox's door with ${process.execPath}: ${said}`)
  }

  async #listen(path: string, door: DoorUse): Promise<void> {
    const server = createServer({ allowHalfOpen: true, pauseOnConnect: door.isPaused ?? false }, (socket) => {
      this.#sockets.add(socket)
      socket.on('error', () => socket.destroy())
      socket.once('close', () => this.#sockets.delete(socket))
      door.accept(socket)
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
