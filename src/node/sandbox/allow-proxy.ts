import { lookup } from 'node:dns/promises'
import { createServer, request, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { BlockList, connect, isIP, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'

export type Resolve = (host: string) => Promise<{ address: string; family: number }[]>

/** Addresses nobody outside has: this machine, its neighbours, and whoever gives out a cloud's keys. */
export function isPrivateAddress(address: string): boolean {
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/i.exec(address)?.[1]
  if (mapped !== undefined) return isPrivateAddress(mapped)
  const family = isIP(address)
  return family === 0 || privateAddresses.check(address, family === 6 ? 'ipv6' : 'ipv4')
}

const privateAddresses = new BlockList()
for (const [network, prefix] of [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['224.0.0.0', 3],
] as const)
  privateAddresses.addSubnet(network, prefix, 'ipv4')
for (const [network, prefix] of [
  ['::', 127],
  ['64:ff9b::', 96],
  ['2002::', 16],
  ['fc00::', 7],
  ['fe80::', 10],
  ['ff00::', 8],
] as const)
  privateAddresses.addSubnet(network, prefix, 'ipv6')

/**
 * A proxy (HTTP, and CONNECT for everything else) for a sandbox that may talk to some hosts: only by those names, which
 * are resolved here, and only where they lead out of this machine's own network. Give it connections with `accept`.
 */
export class AllowProxy {
  readonly #hosts: ReadonlySet<string>
  readonly #resolve: Resolve
  readonly #server: Server

  constructor(hosts: readonly string[], resolve: Resolve = (host) => lookup(host, { all: true })) {
    this.#hosts = new Set(hosts.map((host) => host.toLowerCase()))
    this.#resolve = resolve
    this.#server = createServer((incoming, response) => void this.#forward(incoming, response))
    this.#server.on('connect', (incoming, socket, head) => void this.#tunnel(incoming, socket, head))
    this.#server.on('clientError', (_, socket) => socket.destroy())
  }

  accept(socket: Socket): void {
    this.#server.emit('connection', socket)
  }

  async #tunnel(incoming: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    socket.on('error', () => socket.destroy())
    const [host, port] = splitAuthority(incoming.url ?? '')
    const address = await this.#find(host).catch(() => undefined)
    if (address === undefined || port === undefined) return void socket.end('HTTP/1.1 403 Forbidden\r\n\r\n')
    const upstream = connect({ host: address, port })
    upstream.on('error', () => socket.destroy())
    upstream.once('connect', () => {
      socket.write('HTTP/1.1 200 Connection Established\r\n\r\n')
      upstream.write(head)
      socket.pipe(upstream).pipe(socket)
    })
    socket.once('close', () => upstream.destroy())
  }

  async #forward(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = URL.parse(incoming.url ?? '')
    const address = url?.protocol === 'http:' ? await this.#find(url.hostname).catch(() => undefined) : undefined
    if (url === null || address === undefined) return void response.writeHead(403).end()
    const { 'proxy-authorization': _, 'proxy-connection': __, ...headers } = incoming.headers
    const upstream = request({
      host: address,
      port: url.port === '' ? 80 : Number(url.port),
      method: incoming.method,
      path: `${url.pathname}${url.search}`,
      headers: { ...headers, host: url.host },
      agent: false,
    })
    upstream.once('response', (answer) => {
      response.writeHead(answer.statusCode ?? 502, answer.headers)
      answer.pipe(response)
    })
    upstream.once('error', () => response.destroy())
    incoming.pipe(upstream)
  }

  /** An address to connect to; undefined when it may not be had. */
  async #find(host: string): Promise<string | undefined> {
    if (!this.#hosts.has(host.toLowerCase())) return undefined
    const addresses = await this.#resolve(host)
    // One private address among others is how a name is made to lead inside; none of them is used then.
    return addresses.some(({ address }) => isPrivateAddress(address)) ? undefined : addresses[0]?.address
  }
}

function splitAuthority(authority: string): [host: string, port: number | undefined] {
  const match = /^\[?([^\]]+?)\]?:(\d{1,5})$/.exec(authority)
  return [match?.[1] ?? '', match === null ? undefined : Number(match[2])]
}
