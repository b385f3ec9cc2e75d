import type { SandboxSpec } from '../../runtimes/runtime.ts'
import { AllowProxy } from './allow-proxy.ts'
import type { CleanSpawn } from '../process/clean-spawn.ts'
import { type SocketServer, type SocketHandler, listenHere, listenInside } from './sandbox-sockets.ts'

const PROXY_PORTS = [3128, 3129] as const

/** The servers of a sandbox's connections: to its session, and to the hosts it may reach. */
export interface OpenSockets {
  servers: readonly SocketServer[]
  socketPort: number | undefined
  proxyPort: number | undefined
}

/** `prefix` is the command prefix that enters the sandbox's network namespace, if it has one. */
export async function openSockets(
  { socket, network }: SandboxSpec,
  { spawn, prefix }: { spawn: CleanSpawn; prefix: readonly string[] },
  signal: AbortSignal,
): Promise<OpenSockets> {
  if (network.kind === 'open') {
    if (socket === undefined) return { servers: [], socketPort: undefined, proxyPort: undefined }
    const server = await listenHere(socket.port, socket)
    return { servers: [server], socketPort: server.port, proxyPort: undefined }
  }
  const { handlers, proxyPort } = planSockets({ socket, network })
  const servers = handlers.size === 0 ? [] : await listenInside({ spawn, prefix }, handlers, signal)
  return { servers, socketPort: socket?.port, proxyPort }
}

export function closeSockets({ servers }: OpenSockets): void {
  for (const server of servers) server.close()
}

/** Returns the ports on which a sandbox with a network namespace reaches the node, with their handlers. */
export function planSockets({ socket, network }: Pick<SandboxSpec, 'socket' | 'network'>): SocketPlan {
  const proxy = network.kind === 'allow' ? new AllowProxy(network.hosts) : undefined
  const proxyPort = proxy === undefined ? undefined : PROXY_PORTS.find((port) => port !== socket?.port)
  const handlers = new Map<number, SocketHandler>()
  if (socket !== undefined) handlers.set(socket.port, socket)
  if (proxy !== undefined && proxyPort !== undefined) handlers.set(proxyPort, proxy)
  return { handlers, proxyPort }
}

interface SocketPlan {
  handlers: ReadonlyMap<number, SocketHandler>
  proxyPort: number | undefined
}

/** Environment variables that name the proxy. */
export function proxyVariables({ proxyPort }: Pick<SocketPlan, 'proxyPort'>): Record<string, string> {
  if (proxyPort === undefined) return {}
  const proxy = `http://127.0.0.1:${proxyPort}`
  return { HTTP_PROXY: proxy, HTTPS_PROXY: proxy, http_proxy: proxy, https_proxy: proxy }
}
