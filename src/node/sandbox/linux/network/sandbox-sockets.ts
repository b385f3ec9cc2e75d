import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import { scopeConnections } from '../../../../lib/async/fault-scope.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { SandboxSocket } from '../../runtimes/runtime.ts'
import type { CleanSpawn } from '../process/clean-spawn.ts'

/** A hostile program can open any number of connections; each costs this process a file descriptor. */
const MAX_CONNECTIONS = 512
const BACKLOG = 511

const listenInNode = loadProgram(new URL('./listen.cjs', import.meta.url))
const listenInPerl = loadProgram(new URL('./listen.pl', import.meta.url))

/** Number of the system call sendmsg. */
const SENDMSG: Partial<Record<NodeJS.Architecture, number>> = { x64: 46, arm64: 211 }

/** Handles the connections of one port. */
export type SocketHandler = Pick<SandboxSocket, 'accept' | 'isPaused'>

export interface SocketServer {
  readonly port: number
  /** Closes the server and all connections. */
  close(): void
}

/**
 * Listens in another network namespace without leaving a process there; `prefix` is the command prefix that enters it.
 * Connections arrive in this process directly.
 */
export async function listenInside(
  { spawn, prefix }: { spawn: CleanSpawn; prefix: readonly string[] },
  handlers: ReadonlyMap<number, SocketHandler>,
  signal: AbortSignal,
): Promise<SocketServer[]> {
  const ports = [BACKLOG, ...handlers.keys()].map(String)
  const inNode = [...prefix, process.execPath, '-e', listenInNode(), ...ports]
  const sendmsg = SENDMSG[process.arch]
  if (sendmsg === undefined) return listenBy(inNode, spawn, handlers, signal)
  const inPerl = [...prefix, 'perl', '-e', listenInPerl(), String(sendmsg), ...ports]
  // Perl may be absent, and the format of Node's IPC channel is not documented.
  return listenBy(inPerl, spawn, handlers, signal).catch(() => listenBy(inNode, spawn, handlers, signal))
}

async function listenBy(
  [file, ...args]: readonly string[],
  spawn: CleanSpawn,
  handlers: ReadonlyMap<number, SocketHandler>,
  signal: AbortSignal,
): Promise<SocketServer[]> {
  signal.throwIfAborted()
  const child = spawn(file!, args, {
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    env: { PATH: '/usr/local/bin:/usr/bin:/bin' },
    signal,
    killSignal: 'SIGKILL',
  })
  const opened: SocketServer[] = []
  let stderr = ''
  child.stderr!.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-2000)))
  try {
    await new Promise<void>((resolve, reject) => {
      child.on('message', (message: { port: number; error?: string }, handle) => {
        if (message.error !== undefined) return reject(new Error(message.error))
        opened.push(serve(handle as Server, message.port, handlers.get(message.port)!))
        if (opened.length === handlers.size) resolve()
      })
      child.once('error', reject)
      // Not on exit: messages may still be in transit.
      child.once('disconnect', () => reject(new Error(stderr.trim() || 'the helper process ended early')))
    })
    child.disconnect()
    // Until the helper has closed its copy of the socket, the kernel could give connections to it.
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
    return opened
  } catch (cause) {
    child.kill('SIGKILL')
    for (const server of opened) server.close()
    signal.throwIfAborted()
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new RolloutError('runtime.start-failed', `Cannot open the sandbox's socket: ${reason}`, { cause })
  }
}

/** Listens on this machine's loopback interface; on another port if the port is in use. */
export async function listenHere(port: number, handler: SocketHandler): Promise<SocketServer> {
  const listen = (requested: number) =>
    new Promise<Server>((resolve, reject) => {
      const server = createServer()
      server
        .once('error', reject)
        .listen({ port: requested, host: '127.0.0.1', backlog: BACKLOG }, () => resolve(server))
    })
  const server = await listen(port).catch(() => listen(0))
  const address = server.address()
  return serve(server, typeof address === 'object' && address !== null ? address.port : port, handler)
}

function serve(server: Server, port: number, handler: SocketHandler): SocketServer {
  return { port, close: serveConnections(server, handler) }
}

/** Passes the connections of a server to a handler. Returns a function that closes the server and its connections. */
export function serveConnections(server: Server, handler: SocketHandler): () => void {
  const sockets = new Set<Socket>()
  // A client that has sent its request may close its side before it reads the response.
  Object.assign(server, { allowHalfOpen: true, pauseOnConnect: handler.isPaused ?? false })
  server.maxConnections = MAX_CONNECTIONS
  scopeConnections(server)
  // A connection could not be accepted; the sandbox retries.
  server.on('error', () => {})
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.on('error', () => socket.destroy())
    socket.once('close', () => sockets.delete(socket))
    handler.accept(socket)
  })
  return () => {
    server.close()
    for (const socket of sockets) socket.destroy()
  }
}

/** Creates a server at the path of a unix socket. Returns a function that closes it. */
export async function listenAtPath(path: string, handler: SocketHandler): Promise<() => void> {
  const server = createServer()
  const close = serveConnections(server, handler)
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(path, resolve))
  return close
}
