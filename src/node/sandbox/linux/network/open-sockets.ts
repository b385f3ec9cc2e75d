import type { SandboxSpec } from '../../runtimes/runtime.ts'
import { AllowProxy } from './allow-proxy.ts'
import type { CleanSpawn } from '../process/clean-spawn.ts'
import { type DoorServer, type DoorUse, listenHere, listenInside } from './sandbox-sockets.ts'

const PROXY_PORTS = [3128, 3129] as const

/** The ways out of a sandbox: to its session, and to the hosts it may reach. */
export interface Doors {
  servers: readonly DoorServer[]
  doorPort: number | undefined
  proxyPort: number | undefined
}

/** `lead` is what enters the network of the sandbox, where it has one of its own. */
export async function openDoors(
  { door, network }: SandboxSpec,
  { spawn, lead }: { spawn: CleanSpawn; lead: readonly string[] },
  signal: AbortSignal,
): Promise<Doors> {
  if (network.kind === 'open') {
    if (door === undefined) return { servers: [], doorPort: undefined, proxyPort: undefined }
    const server = await listenHere(door.port, door)
    return { servers: [server], doorPort: server.port, proxyPort: undefined }
  }
  const proxy = network.kind === 'allow' ? new AllowProxy(network.hosts) : undefined
  const proxyPort = proxy === undefined ? undefined : PROXY_PORTS.find((port) => port !== door?.port)
  const wanted = new Map<number, DoorUse>()
  if (door !== undefined) wanted.set(door.port, door)
  if (proxy !== undefined && proxyPort !== undefined) wanted.set(proxyPort, proxy)
  const servers = wanted.size === 0 ? [] : await listenInside({ spawn, lead }, wanted, signal)
  return { servers, doorPort: door?.port, proxyPort }
}

export function closeDoors({ servers }: Doors): void {
  for (const server of servers) server.close()
}

/** Tells programs of the proxy, where there is one. */
export function proxyVariables({ proxyPort }: Doors): Record<string, string> {
  if (proxyPort === undefined) return {}
  const proxy = `http://127.0.0.1:${proxyPort}`
  return { HTTP_PROXY: proxy, HTTPS_PROXY: proxy, http_proxy: proxy, https_proxy: proxy }
}
