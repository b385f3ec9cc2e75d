import { isIP } from 'node:net'

/** Whether a host, as an address or a name, with or without the brackets of IPv6, can be reached from this machine only. */
export function isLoopbackHost(host: string): boolean {
  const name = host.replace(/^\[(.*)\]$/, '$1').toLowerCase()
  if (name === 'localhost' || name === '::1') return true
  return isIP(name) === 4 && name.startsWith('127.')
}
