import { hostname, networkInterfaces } from 'node:os'
import { isLoopbackHost } from './loopback-host.ts'
import { toAddress } from './ip-address.ts'

interface Own {
  /** A canonical address, or a name in lower case. */
  host: string
  port: number
  /** Whether connections to it end at this machine. */
  isHere: boolean
}

/**
 * Where the parts of Polar that this process knows listen: server, gateway, control API. A URL that a task chose must not
 * lead there. Any address of this machine counts as an address of a listener on this machine: which of them a listener
 * takes connections on is not looked up.
 */
export class OwnAddresses {
  readonly #all: Own[] = []

  /** `url`: as the listener is reached, with its port. */
  add(url: string): void {
    const { host, port } = placeOf(new URL(url))
    this.#all.push({ host, port, isHere: isHere(host) })
  }

  /** Whether a URL leads to one of them as it is written; a name is not resolved. */
  hasUrl(url: URL): boolean {
    const { host, port } = placeOf(url)
    return this.#all.some((own) => own.port === port && (own.host === host || (own.isHere && isHere(host))))
  }

  /** Whether a connection to this address and port reaches one of them. */
  has(address: string, port: number): boolean {
    const host = toAddress(address) ?? address
    return this.#all.some((own) => own.port === port && (own.host === host || (own.isHere && isHere(host))))
  }
}

function placeOf(url: URL): { host: string; port: number } {
  const port = Number(url.port || (url.protocol === 'https:' ? 443 : 80))
  return { host: toAddress(url.hostname) ?? url.hostname.toLowerCase().replace(/\.$/, ''), port }
}

function isHere(host: string): boolean {
  if (isLoopbackHost(host) || host.endsWith('.localhost') || host === hostname().toLowerCase()) return true
  // Linux connects to the unspecified address as to loopback.
  if (host.startsWith('0.') || host === '::') return true
  const interfaces = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? [])
  return interfaces.some(({ address }) => toAddress(address.replace(/%.*$/, '')) === host)
}
