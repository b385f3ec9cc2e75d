import type { BlockList } from 'node:net'
import { isIP } from 'node:net'
import { RolloutError } from '../../model/failure.ts'
import { classOf, contains, rangesOf, toAddress } from '../../lib/net/ip-address.ts'

export const DEFAULT_ALLOWED_HOSTS = ['loopback']

type Rule =
  | { kind: 'loopback' }
  | { kind: 'host'; host: string; port: string | undefined }
  | { kind: 'domain'; suffix: string }
  | { kind: 'range'; range: BlockList }

/** Allow list for callbacks. A host name is checked twice: by name, and by every address that it resolves to. */
export interface AllowedHosts {
  /** Reason why the URL is not allowed; undefined if it is. */
  refuseUrl(url: string): string | undefined
  /** Reason why these addresses are not allowed; undefined if all are. */
  refuseAddresses(hostname: string, addresses: readonly string[]): string | undefined
}

export function createAllowedHosts(entries: readonly string[]): AllowedHosts {
  const rules = entries.map(parseRule)
  const hasLoopback = rules.some(({ kind }) => kind === 'loopback')

  const isAddressAllowed = (address: string, isNamed: boolean, isOpenName: boolean): boolean => {
    const inRange = rules.some((rule) => rule.kind === 'range' && contains(rule.range, address))
    switch (classOf(address)) {
      case 'loopback':
        return hasLoopback || inRange
      case 'private':
        return isNamed || inRange
      case 'public':
        return isNamed || isOpenName || inRange
      case 'never':
        return false
    }
  }

  const refuseLiteral = (address: string, port: string): string | undefined => {
    const isNamed = rules.some(
      (rule) => rule.kind === 'host' && rule.host === address && (rule.port === undefined || rule.port === port),
    )
    // A listed address is allowed, except the unspecified address (0.0.0.0, ::).
    if (isNamed && !/^0\.|^::$/.test(address)) return undefined
    return isAddressAllowed(address, false, false) ? undefined : `address ${address} is not in the list`
  }

  return {
    refuseUrl(text) {
      const url = URL.canParse(text) ? new URL(text) : undefined
      if (url === undefined) return 'it is not a URL'
      if (url.protocol !== 'http:' && url.protocol !== 'https:') return `${url.protocol} is neither http nor https`
      if (url.username !== '' || url.password !== '') return 'it contains a user or password'
      const port = url.port || (url.protocol === 'https:' ? '443' : '80')
      const address = toAddress(url.hostname)
      if (address !== undefined) return refuseLiteral(address, port)
      const host = toName(url.hostname)
      const isAllowed = rules.some((rule) => {
        if (rule.kind === 'host') return rule.host === host && (rule.port === undefined || rule.port === port)
        return matchesName(rule, host)
      })
      return isAllowed ? undefined : `host ${host}:${port} is not in the list`
    },
    refuseAddresses(hostname, addresses) {
      const host = toName(hostname)
      const isNamed = rules.some((rule) => rule.kind === 'host' && rule.host === host)
      const isOpenName = rules.some((rule) => rule.kind === 'domain' && matchesName(rule, host))
      if (addresses.length === 0) return `${host} has no address`
      const bad = addresses.find((text) => {
        const address = toAddress(text)
        return address === undefined || !isAddressAllowed(address, isNamed, isOpenName)
      })
      return bad === undefined ? undefined : `${host} resolves to ${bad}, which is not in the list`
    },
  }
}

function matchesName(rule: Rule, host: string): boolean {
  switch (rule.kind) {
    case 'loopback':
      return host === 'localhost' || host.endsWith('.localhost')
    case 'host':
      return rule.host === host
    case 'domain':
      return host.endsWith(rule.suffix)
    case 'range':
      return false
  }
}

/** A trailing dot only marks the name as absolute. */
function toName(hostname: string): string {
  return hostname.toLowerCase().replace(/\.$/, '')
}

function parseRule(entry: string): Rule {
  if (entry === 'loopback') return { kind: 'loopback' }
  const domain = /^\*\.([a-z0-9-]+(?:\.[a-z0-9-]+)*)$/i.exec(entry)?.[1]
  if (domain !== undefined) return { kind: 'domain', suffix: `.${domain.toLowerCase()}` }
  const [net, bits] = entry.split('/')
  if (net !== undefined && bits !== undefined) return parseRange(entry, net, bits)
  const [, written, port] = /^(\[[0-9a-f:.]+\]|[^:/@?#[\]*]+)(?::(\d{1,5}))?$/i.exec(entry) ?? []
  const host = isIP(entry) === 6 ? entry : written
  if (host === undefined || !URL.canParse(`http://${bracketed(host)}/`)) throw invalid(entry)
  // Parsed like the host of a URL, so that the two compare equal.
  const parsed = new URL(`http://${bracketed(host)}/`).hostname
  return {
    kind: 'host',
    host: toAddress(parsed) ?? toName(parsed),
    port: port === undefined ? undefined : `${Number(port)}`,
  }
}

function parseRange(entry: string, net: string, bits: string): Rule {
  const maxBits = { 0: -1, 4: 32, 6: 128 }[isIP(net)] ?? -1
  if (!/^\d{1,3}$/.test(bits) || Number(bits) > maxBits) throw invalid(entry)
  return { kind: 'range', range: rangesOf([entry]) }
}

function bracketed(host: string): string {
  return isIP(host) === 6 ? `[${host}]` : host
}

function invalid(entry: string): RolloutError {
  const message = `${JSON.stringify(entry)} is not a valid entry of callback hosts; use a host, host:port, *.domain, a range such as 10.0.0.0/8, or loopback.`
  return new RolloutError('config.invalid', message)
}
