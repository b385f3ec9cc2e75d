import { hostname, networkInterfaces } from 'node:os'
import { isLoopbackHost } from './loopback-host.ts'
import { toAddress } from './ip-address.ts'

interface Own {
  /** A canonical address, or a name in lower case. */
  host: string
  port: number
  /** Whether the address belongs to this machine. */
  isHere: boolean
}

/**
 * Listening addresses of Polar itself: server, gateway, control API. URLs that tasks choose must not lead there. Every address
 * of this machine counts as an address of every listener on this machine.
 */
export class OwnAddresses {
  readonly #all: Own[] = []

  /** `url` is that of the listener, with its port. */
  add(url: string): void {
    const { host, port } = placeOf(new URL(url))
    this.#all.push({ host, port, isHere: isHere(host) })
  }

  /** Whether a URL names one of the listeners; host names are not resolved. */
  hasUrl(url: URL): boolean {
    const { host, port } = placeOf(url)
    return this.#all.some((own) => own.port === port && (own.host === host || (own.isHere && isHere(host))))
  }

  /** Whether a connection to this address and port reaches one of the listeners. */
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
