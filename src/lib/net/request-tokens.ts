import { createHash } from 'node:crypto'

/**
 * Every part of a request's headers that may be an access token. NVIDIA Polar's services send `x-polar-control-token`. A
 * token in the URL of a server (`http://x:TOKEN@host`) arrives as Basic credentials, as password or as user.
 */
export function tokensOf(headers: Headers): string[] {
  const [, scheme = '', value = ''] = /^(Bearer|Basic) +(\S+) *$/i.exec(headers.get('authorization') ?? '') ?? []
  const control = headers.get('x-polar-control-token')?.trim() ?? ''
  const sent = scheme.toLowerCase() === 'basic' ? credentialsOf(value) : [value]
  return [...sent, control].filter((token) => token !== '')
}

/** Hashes have one length, so `timingSafeEqual` compares tokens of any length in constant time. */
export function hashToken(token: string): Buffer {
  return createHash('sha256').update(token).digest()
}

/** Password first, then user. A password may contain a colon, a user may not (RFC 7617). */
function credentialsOf(base64: string): string[] {
  const text = Buffer.from(base64, 'base64').toString()
  const colon = text.indexOf(':')
  return colon === -1 ? [text] : [text.slice(colon + 1), text.slice(0, colon)]
}

const MIN_TOKEN_LENGTH = 16

/** Returns the reason why a text is not a valid token; undefined for a valid token. */
export function tokenProblem(token: string): string | undefined {
  if (token.length < MIN_TOKEN_LENGTH) return `is shorter than ${MIN_TOKEN_LENGTH} characters`
  return /^[\x21-\x7e]*$/.test(token) ? undefined : 'has characters that cannot be sent in a header'
}
