import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import { scopeConnections } from '../../../../lib/async/fault-scope.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { Door } from '../../runtimes/runtime.ts'
import type { CleanSpawn } from '../process/clean-spawn.ts'

/** A hostile program can open as many connections as it likes; each costs us a file descriptor. */
const MAX_CONNECTIONS = 512
const BACKLOG = 511

const listenInNode = loadProgram(new URL('./listen.cjs', import.meta.url))
const listenInPerl = loadProgram(new URL('./listen.pl', import.meta.url))

/** The number of that system call, where we know it. */
const SENDMSG: Partial<Record<NodeJS.Architecture, number>> = { x64: 46, arm64: 211 }

/** What becomes of the connections of a door. */
export type DoorUse = Pick<Door, 'accept' | 'isPaused'>

export interface DoorServer {
  readonly port: number
  /** Closes it, with all connections. */
  close(): void
}

/**
 * Listens in another network namespace, without a process that stays there: `lead` is what enters it. Connections arrive
 * in this process directly.
 */
export async function listenInside(
  { spawn, lead }: { spawn: CleanSpawn; lead: readonly string[] },
  doors: ReadonlyMap<number, DoorUse>,
  signal: AbortSignal,
): Promise<DoorServer[]> {
  const ports = [BACKLOG, ...doors.keys()].map(String)
  const inNode = [...lead, process.execPath, '-e', listenInNode(), ...ports]
  const sendmsg = SENDMSG[process.arch]
  if (sendmsg === undefined) return listenBy(inNode, spawn, doors, signal)
  const inPerl = [...lead, 'perl', '-e', listenInPerl(), String(sendmsg), ...ports]
  // Perl may not be there, and how Node talks to its children is Node's own affair.
  return listenBy(inPerl, spawn, doors, signal).catch(() => listenBy(inNode, spawn, doors, signal))
}

async function listenBy(
  [file, ...args]: readonly string[],
  spawn: CleanSpawn,
  doors: ReadonlyMap<number, DoorUse>,
  signal: AbortSignal,
): Promise<DoorServer[]> {
  signal.throwIfAborted()
  const child = spawn(file!, args, {
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    env: { PATH: '/usr/local/bin:/usr/bin:/bin' },
    signal,
    killSignal: 'SIGKILL',
  })
  const opened: DoorServer[] = []
  let stderr = ''
  child.stderr!.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-2000)))
  try {
    await new Promise<void>((resolve, reject) => {
      child.on('message', (message: { port: number; error?: string }, handle) => {
        if (message.error !== undefined) return reject(new Error(message.error))
        opened.push(serve(handle as Server, message.port, doors.get(message.port)!))
        if (opened.length === doors.size) resolve()
      })
      child.once('error', reject)
      // Not when it exits: what it has sent may still be on its way.
      child.once('disconnect', () => reject(new Error(stderr.trim() || 'the helper ended early')))
    })
    child.disconnect()
    // As long as it has the socket too, connections could end up there.
    if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
    return opened
  } catch (cause) {
    child.kill('SIGKILL')
    for (const door of opened) door.close()
    signal.throwIfAborted()
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new RolloutError('runtime.start-failed', `Cannot open the sandbox's door: ${reason}`, { cause })
  }
}

/** Listens on this machine's own loopback; on another port when that one is taken. */
export async function listenHere(port: number, door: DoorUse): Promise<DoorServer> {
  const listen = (wanted: number) =>
    new Promise<Server>((resolve, reject) => {
      const server = createServer()
      server.once('error', reject).listen({ port: wanted, host: '127.0.0.1', backlog: BACKLOG }, () => resolve(server))
    })
  const server = await listen(port).catch(() => listen(0))
  const address = server.address()
  return serve(server, typeof address === 'object' && address !== null ? address.port : port, door)
}

function serve(server: Server, port: number, door: DoorUse): DoorServer {
  const sockets = new Set<Socket>()
  // Who is done with asking may still want to read the answer.
  Object.assign(server, { allowHalfOpen: true, pauseOnConnect: door.isPaused ?? false })
  server.maxConnections = MAX_CONNECTIONS
  scopeConnections(server)
  // A connection that cannot be accepted: its sandbox tries again.
  server.on('error', () => {})
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.on('error', () => socket.destroy())
    socket.once('close', () => sockets.delete(socket))
    door.accept(socket)
  })
  return {
    port,
    close() {
      server.close()
      for (const socket of sockets) socket.destroy()
    },
  }
}
