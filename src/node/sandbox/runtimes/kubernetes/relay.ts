import { mkdir } from 'node:fs/promises'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { listenAtPath, type SocketHandler } from '../../linux/network/sandbox-sockets.ts'
import type { Cluster } from './cluster.ts'
import { openExec, type ExecStream, type ContainerTarget } from './exec.ts'
import { relayProtocol } from './relay-protocol.ts'

const { headerBytes, windowBytes, kinds } = relayProtocol
const relayProgram = loadProgram(new URL('./relay.cjs', import.meta.url))
/** Tests whether an address is reachable. */
export const probe = loadProgram(new URL('./probe.cjs', import.meta.url))

const READY_MS = 60_000
const RETRY_MS = [200, 500, 1000, 2000, 5000] as const

interface RelayDeps {
  cluster: Cluster
  /** The container that runs the relay program. */
  target: ContainerTarget
  handlers: ReadonlyMap<number, SocketHandler>
  /** Folder of the unix sockets. */
  folder: string
}

interface Connection {
  socket: Socket
  credit: number
}

/**
 * The sockets of a pod. A relay program listens in a container of its own, which shares only the network namespace with
 * the sandbox, and forwards connections over the exec stream that started it. So no packet of the sandbox leaves its
 * pod, the policy can deny all traffic, no address of the node is reachable from any pod, and the node can run in the
 * cluster, beside it, or behind a NAT. The alternative, an address of the node that the policy allows, would need a
 * route from every pod, rules for where policies and address translation meet, and a listener that pods of others can
 * reach.
 *
 * When the exec stream breaks, all connections break, as with a restarted server; the relay is then started again.
 */
export class Relay implements AsyncDisposable {
  readonly #deps: RelayDeps
  readonly #closers: (() => void)[] = []
  #stream: ExecStream | undefined
  #isClosed = false

  static async open(deps: RelayDeps, signal: AbortSignal): Promise<Relay> {
    const { handlers, folder } = deps
    const relay = new Relay(deps)
    try {
      await mkdir(folder, { mode: 0o700 })
      // Connections become real sockets, so that a handler can use every feature of these.
      for (const [port, handler] of handlers)
        relay.#closers.push(await listenAtPath(join(folder, String(port)), handler))
      await relay.#start(signal)
      return relay
    } catch (error) {
      await relay[Symbol.asyncDispose]()
      signal.throwIfAborted()
      throw error
    }
  }

  private constructor(deps: RelayDeps) {
    this.#deps = deps
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true
    this.#stream?.close()
    for (const close of this.#closers) close()
  }

  async #start(signal: AbortSignal): Promise<void> {
    const { cluster, target, handlers } = this.#deps
    const ports = [...handlers.keys()].map(String)
    const live = new Map<number, Connection>()
    let stderrText = ''
    let toReady!: (reason: string | undefined) => void
    const ready = new Promise<string | undefined>((resolve) => (toReady = resolve))
    const frames = new FrameInput((id, kind, data) => {
      if (kind === kinds.ready) toReady(undefined)
      else if (kind === kinds.failed) toReady(data.toString())
      else if (kind === kinds.open) this.#connect(stream, live, id, data.readUInt32BE(0))
      else this.#handle(live, id, kind, data)
    })
    const stream = await openExec(
      cluster,
      target,
      ['node', '-e', relayProgram(), JSON.stringify(relayProtocol), ...ports],
      {
        stdout: (data) => frames.push(data),
        stderr: (data) => {
          stderrText = (stderrText + data.toString()).slice(-500)
        },
      },
      signal,
    )
    this.#stream = stream
    const ended = stream.ended.then((end) => {
      for (const { socket } of live.values()) socket.destroy()
      return stderrText.trim() || (end.kind === 'exit' ? `exit code ${end.exitCode}` : end.message)
    })
    const timeout = sleep(READY_MS, 'the relay was not ready in time', { ref: false, signal }).catch(
      () => 'the start was aborted',
    )
    const failure = await Promise.race([ready, ended, timeout])
    if (failure !== undefined || this.#isClosed) {
      stream.close()
      throw new RolloutError(
        'runtime.start-failed',
        `Cannot open the sandbox's socket with runtime.relayImage: ${failure}`,
      )
    }
    void ended.then(() => this.#restart())
  }

  async #restart(): Promise<void> {
    for (let attempt = 0; !this.#isClosed; attempt += 1) {
      try {
        return await this.#start(AbortSignal.timeout(READY_MS))
      } catch {
        await sleep(RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)], undefined, { ref: false })
      }
    }
  }

  #connect(stream: ExecStream, live: Map<number, Connection>, id: number, port: number): void {
    const socket = connect({ path: join(this.#deps.folder, String(port)), allowHalfOpen: true })
    const connection: Connection = { socket, credit: windowBytes }
    live.set(id, connection)
    const send = (kind: number, data?: Buffer) => void stream.write(toFrame(id, kind, data))
    socket.on('data', (chunk: Buffer) => {
      connection.credit -= chunk.length
      if (connection.credit <= 0) socket.pause()
      send(kinds.data, chunk)
    })
    socket.on('end', () => send(kinds.end))
    socket.on('error', () => socket.destroy())
    socket.on('close', () => {
      if (live.delete(id)) send(kinds.close)
    })
    this.#acknowledge.set(socket, (bytes) => send(kinds.credit, toNumber(bytes)))
  }

  readonly #acknowledge = new WeakMap<Socket, (bytes: number) => void>()

  #handle(live: Map<number, Connection>, id: number, kind: number, data: Buffer): void {
    const connection = live.get(id)
    if (connection === undefined) return
    const { socket } = connection
    if (kind === kinds.data) socket.write(data, () => this.#acknowledge.get(socket)?.(data.length))
    if (kind === kinds.end) socket.end()
    if (kind === kinds.close) {
      live.delete(id)
      socket.destroy()
    }
    if (kind === kinds.credit) {
      connection.credit += data.readUInt32BE(0)
      if (connection.credit > 0) socket.resume()
    }
  }
}

/** Joins frames, however they are split. */
class FrameInput {
  readonly #onFrame: (id: number, kind: number, data: Buffer) => void
  #rest: Buffer = Buffer.alloc(0)

  constructor(onFrame: (id: number, kind: number, data: Buffer) => void) {
    this.#onFrame = onFrame
  }

  push(chunk: Buffer): void {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
    while (this.#rest.length >= headerBytes) {
      const end = headerBytes + this.#rest.readUInt32BE(5)
      if (this.#rest.length < end) break
      const frame = this.#rest.subarray(0, end)
      this.#rest = this.#rest.subarray(end)
      this.#onFrame(frame.readUInt32BE(0), frame[4]!, frame.subarray(headerBytes))
    }
  }
}

function toFrame(id: number, kind: number, data: Buffer = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(headerBytes)
  head.writeUInt32BE(id, 0)
  head[4] = kind
  head.writeUInt32BE(data.length, 5)
  return Buffer.concat([head, data])
}

function toNumber(value: number): Buffer {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}
