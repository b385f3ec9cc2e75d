import { hash } from 'node:crypto'

/** Longer requests are stored whole only when the engine has accepted them. In UTF-16 units. */
export const LONG_REQUEST_UNITS = 256 * 1024
const HEAD_UNITS = 4096

/**
 * What is stored of a long request that the engine did not accept, so that refused requests cannot fill the disk. No
 * dialect reads it as a request.
 */
export function shortenRequest(text: string): string {
  const shortened = { bytes: Buffer.byteLength(text), sha256: hash('sha256', text), head: text.slice(0, HEAD_UNITS) }
  return JSON.stringify({ shortened })
}
