import { BlockList, isIP } from 'node:net'

/**
 * Class of an address. `never`: addresses that no trainer listens on, and services of the machine itself, such as the metadata
 * service of a cloud, which returns credentials.
 */
export type AddressClass = 'public' | 'private' | 'loopback' | 'never'

const PRIVATE = rangesOf(['10.0.0.0/8', '100.64.0.0/10', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'])

/** From the registries of special addresses (RFC 6890 and later), and two metadata services in private ranges. */
const NEVER = rangesOf([
  '0.0.0.0/8',
  '169.254.0.0/16',
  '100.100.100.200/32',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
  'fd00:ec2::254/128',
  '2001::/23',
  '2001:db8::/32',
  '2002::/16',
  '3fff::/20',
])
/** The only part of IPv6 that is allocated for global unicast. */
const GLOBAL_V6 = rangesOf(['2000::/3'])

/** `address` must be canonical, as `toAddress()` returns it. */
export function classOf(address: string): AddressClass {
  if (isIP(address) === 4 ? address.startsWith('127.') : address === '::1') return 'loopback'
  if (contains(NEVER, address)) return 'never'
  if (contains(PRIVATE, address)) return 'private'
  return isIP(address) === 4 || contains(GLOBAL_V6, address) ? 'public' : 'never'
}

/**
 * Returns the canonical form of an address: without brackets, and IPv4 addresses that are mapped or translated from IPv6 as
 * IPv4. Undefined for text that is not an address.
 */
export function toAddress(text: string): string | undefined {
  const bare = text.replace(/^\[(.*)\]$/, '$1')
  if (isIP(bare) !== 6) return isIP(bare) === 4 ? bare : undefined
  if (bare.includes('%')) return undefined
  // The URL parser writes addresses as RFC 5952 recommends.
  const short = new URL(`http://[${bare}]/`).hostname.slice(1, -1)
  const inside = /^(?:::ffff:|64:ff9b::)([0-9a-f]{1,4}):([0-9a-f]{1,4})$/.exec(short)
  if (inside === null) return short
  const [high, low] = [Number.parseInt(inside[1] as string, 16), Number.parseInt(inside[2] as string, 16)]
  return [high >> 8, high & 255, low >> 8, low & 255].join('.')
}

export function rangesOf(ranges: readonly string[]): BlockList {
  const list = new BlockList()
  for (const range of ranges) {
    const [net = '', bits = ''] = range.split('/')
    list.addSubnet(net, Number(bits), familyOf(net))
  }
  return list
}

export function contains(ranges: BlockList, address: string): boolean {
  return ranges.check(address, familyOf(address))
}

function familyOf(address: string): 'ipv4' | 'ipv6' {
  return isIP(address) === 4 ? 'ipv4' : 'ipv6'
}
