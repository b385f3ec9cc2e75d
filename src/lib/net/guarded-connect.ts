import { lookup as systemLookup } from 'node:dns/promises'
import { isIP, type LookupFunction } from 'node:net'
import type { buildConnector } from 'undici'
import { undici } from './undici.ts'

/** The guard rejected a connection. */
export class ForbiddenAddress extends Error {}

export interface ConnectGuard {
  /** Returns the reason to reject these addresses; undefined to allow them. For an address in a URL, the name is the address. */
  refuse: (hostname: string, port: number, addresses: readonly string[]) => string | undefined
  timeoutMs: number
  /** Resolves all addresses of a name; absent: the resolver of the system. */
  resolve?: (hostname: string) => Promise<string[]>
}

/**
 * Connector for undici that resolves names itself, checks all addresses, and connects to a checked address, which prevents DNS
 * rebinding. A rejected connection fails with `ForbiddenAddress`.
 */
export function guardedConnect({
  refuse,
  timeoutMs,
  resolve = resolveBySystem,
}: ConnectGuard): buildConnector.connector {
  return (options, callback) => {
    const port = Number(options.port || (options.protocol === 'https:' ? 443 : 80))
    const lookup: LookupFunction = (hostname, { all }, done) => {
      resolve(hostname).then(
        (addresses) => {
          const found = addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }))
          const refusal = refuse(hostname, port, addresses)
          if (refusal !== undefined) done(new ForbiddenAddress(refusal), '', 0)
          else if (all === true) done(null, found)
          else done(null, found[0]?.address ?? '', found[0]?.family ?? 0)
        },
        (error: unknown) => done(error as Error, '', 0),
      )
    }
    // Node does not call `lookup` for an address.
    const refusal = isIP(options.hostname) === 0 ? undefined : refuse(options.hostname, port, [options.hostname])
    if (refusal !== undefined) callback(new ForbiddenAddress(refusal), null)
    else undici().buildConnector({ lookup, timeout: timeoutMs })(options, callback)
  }
}

/** Returns the `ForbiddenAddress` among the causes of an error. */
export function forbiddenIn(error: unknown): ForbiddenAddress | undefined {
  if (error instanceof ForbiddenAddress) return error
  if (error instanceof AggregateError) return error.errors.map(forbiddenIn).find((one) => one !== undefined)
  return error instanceof Error && error.cause !== undefined ? forbiddenIn(error.cause) : undefined
}

async function resolveBySystem(hostname: string): Promise<string[]> {
  const found = await systemLookup(hostname, { all: true, order: 'verbatim' })
  return found.map(({ address }) => address)
}
