import { once } from 'node:events'
import { createServer, type Server, type Socket } from 'node:net'
import { scopeConnections } from '../../../../lib/async/fault-scope.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { Door } from '../../runtimes/runtime.ts'
import type { CleanSpawn } from '../process/clean-spawn.ts'

/** A hostile program can open as many connections as it likes; each costs us a file descriptor. */
const MAX_CONNECTIONS = 512
const BACKLOG = 511

/** Runs in the sandbox's network, but is our own: listens, sends the listening socket back, and goes when it is told. */
const LISTEN = `
const ports = process.argv.slice(1).map(Number)
for (const port of ports) {
  const server = require('node:net').createServer()
  server.on('error', (error) => process.send({ port, error: error.message }, () => process.exit(1)))
  server.listen({ port, host: '127.0.0.1', backlog: ${BACKLOG} }, () => {
    process.send({ port }, server)
  })
}
setTimeout(() => process.exit(1), 20000)
process.on('disconnect', () => process.exit(0))
`

/**
 * The same in Perl, which is there in a few milliseconds where Node takes a tenth of a second. It sends each socket as a
 * child process of Node would: one line of JSON, with the file descriptor beside it.
 */
const LISTEN_IN_PERL = `
use Socket;
my ($sendmsg, @ports) = map { $_ + 0 } @ARGV;
alarm 5;
open(my $channel, "+<&=", $ENV{NODE_CHANNEL_FD}) or die "channel: $!";
my @open;
for my $port (@ports) {
  socket(my $server, PF_INET, SOCK_STREAM, 0) or die "socket: $!";
  setsockopt($server, SOL_SOCKET, SO_REUSEADDR, 1);
  bind($server, sockaddr_in($port, INADDR_LOOPBACK)) or die "port $port: $!";
  listen($server, ${BACKLOG}) or die "port $port: $!";
  push @open, $server;
  my $line = qq({"cmd":"NODE_HANDLE","type":"net.Server","msg":{"port":$port}}\\n);
  my $vector = pack("PQ", $line, length $line);
  my $rights = pack("Qlllx4", 20, 1, 1, fileno $server);
  my $message = pack("QQPQPQQ", 0, 0, $vector, 1, $rights, length $rights, 0);
  syscall($sendmsg, fileno $channel, $message, 0) == length $line or die "sendmsg: $!";
}
1 while sysread($channel, my $answer, 4096);
`

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
  const ports = [...doors.keys()].map(String)
  const inNode = [...lead, process.execPath, '-e', LISTEN, ...ports]
  const sendmsg = SENDMSG[process.arch]
  if (sendmsg === undefined) return listenBy(inNode, spawn, doors, signal)
  const inPerl = [...lead, 'perl', '-e', LISTEN_IN_PERL, String(sendmsg), ...ports]
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
