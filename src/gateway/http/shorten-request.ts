import { hash } from 'node:crypto'

/** A longer request is stored whole only if the engine accepts it. In UTF-16 units. */
export const LONG_REQUEST_UNITS = 256 * 1024
const HEAD_UNITS = 4096

/**
 * Returns the text that is stored for a long request that the engine rejected, so that rejected requests cannot fill the
 * disk. No dialect parses this text as a request.
 */
export function shortenRequest(text: string): string {
  const shortened = { bytes: Buffer.byteLength(text), sha256: hash('sha256', text), head: text.slice(0, HEAD_UNITS) }
  return JSON.stringify({ shortened })
}
