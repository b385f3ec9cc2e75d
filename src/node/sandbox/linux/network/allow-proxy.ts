import { lookup } from 'node:dns/promises'
import {
  createServer,
  request,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type Server,
  type ServerResponse,
} from 'node:http'
import { BlockList, connect, isIP, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { scopeConnections } from '../../../../lib/async/fault-scope.ts'

type Resolve = (host: string) => Promise<{ address: string; family: number }[]>

interface ProxyDeps {
  /** Default: the resolver of this machine. */
  resolve?: Resolve
  /** Default: `isPrivateAddress`. */
  isPrivate?: (address: string) => boolean
}

const systemResolve: Resolve = (host) => lookup(host, { all: true })

/** Whether an address is not public: this machine, its local networks, the metadata services of clouds. */
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
 * An HTTP proxy (with CONNECT for every other protocol) for a sandbox that may reach some hosts. A request must name one
 * of these hosts; the proxy resolves the name itself and rejects names that resolve to a private address. Sandbox and
 * remote host are both hostile: a malformed message ends its own connection and nothing else.
 */
export class AllowProxy {
  readonly #hosts: ReadonlySet<string>
  readonly #resolve: Resolve
  readonly #isPrivate: (address: string) => boolean
  readonly #server: Server
  /** Lookups in progress, one per name: lookups occupy threads that the file operations of all sessions need. */
  readonly #lookups = new Map<string, ReturnType<Resolve>>()

  constructor(hosts: readonly string[], { resolve = systemResolve, isPrivate = isPrivateAddress }: ProxyDeps = {}) {
    this.#hosts = new Set(hosts.map((host) => host.toLowerCase()))
    this.#resolve = resolve
    this.#isPrivate = isPrivate
    this.#server = createServer((incoming, response) => {
      incoming.on('error', () => response.destroy())
      this.#forward(incoming, response).catch(() => response.destroy())
    })
    scopeConnections(this.#server)
    this.#server.on('connect', (incoming, socket, head) => {
      socket.on('error', () => socket.destroy())
      this.#tunnel(incoming, socket, head).catch(() => socket.destroy())
    })
    this.#server.on('upgrade', (_, socket) => socket.destroy())
    this.#server.on('clientError', (_, socket) => socket.destroy())
  }

  accept(socket: Socket): void {
    this.#server.emit('connection', socket)
  }

  async #tunnel(incoming: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const [host, port] = splitAuthority(incoming.url ?? '')
    const address = await this.#find(host).catch(() => undefined)
    if (address === undefined || port === undefined) return void socket.end('HTTP/1.1 403 Forbidden\r\n\r\n')
    if (socket.destroyed) return
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
    if (response.destroyed) return
    const isChunked = incoming.headers['transfer-encoding'] !== undefined
    const upstream = request({
      host: address,
      port: url.port === '' ? 80 : Number(url.port),
      method: incoming.method,
      path: `${url.pathname}${url.search}`,
      headers: {
        ...endToEndHeaders(incoming.headers),
        host: url.host,
        // Node adds the framing of a body only for methods that usually have a body.
        ...(isChunked ? { 'transfer-encoding': 'chunked' } : {}),
      },
      agent: false,
    })
    upstream.on('error', () => response.destroy())
    upstream.once('response', (answer) => {
      answer.on('error', () => response.destroy())
      try {
        response.writeHead(toStatus(answer.statusCode), endToEndHeaders(answer.headers))
        answer.pipe(response)
      } catch {
        // A header that Node's parser accepts and its writer rejects.
        upstream.destroy()
        response.destroy()
      }
    })
    upstream.on('upgrade', (_, socket) => {
      socket.destroy()
      response.destroy()
    })
    response.once('close', () => upstream.destroy())
    incoming.pipe(upstream)
  }

  /** Returns an address to connect to; undefined if the host is not allowed. */
  async #find(host: string): Promise<string | undefined> {
    const name = host.toLowerCase()
    if (!this.#hosts.has(name)) return undefined
    const addresses = await this.#lookUp(name)
    // DNS rebinding mixes private addresses into a response, so one private address rejects all.
    return addresses.some(({ address }) => this.#isPrivate(address)) ? undefined : addresses[0]?.address
  }

  #lookUp(name: string): ReturnType<Resolve> {
    const known = this.#lookups.get(name)
    if (known !== undefined) return known
    const made = this.#resolve(name).finally(() => this.#lookups.delete(name))
    this.#lookups.set(name, made)
    return made
  }
}

/** Headers that describe one connection, not the message (RFC 9110, section 7.6.1): a proxy does not forward them. */
const HOP_BY_HOP: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
])

function endToEndHeaders(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  const named = new Set((headers.connection ?? '').split(',').map((name) => name.trim().toLowerCase()))
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !HOP_BY_HOP.has(name) && !named.has(name)))
}

/** Node's HTTP parser accepts every number of three digits; its writer throws for numbers below 100. */
function toStatus(status: number | undefined): number {
  return status === undefined || status < 200 ? 502 : status
}

function splitAuthority(authority: string): [host: string, port: number | undefined] {
  const match = /^\[?([^\]]+?)\]?:(\d{1,5})$/.exec(authority)
  const port = Number(match?.[2])
  return [match?.[1] ?? '', port >= 1 && port <= 65_535 ? port : undefined]
}
