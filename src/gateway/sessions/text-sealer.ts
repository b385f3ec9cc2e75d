import { createCipheriv, createDecipheriv, createHmac, hkdfSync } from 'node:crypto'
import type { TextSealer } from '../dialects/dialect.ts'

const NONCE_BYTES = 12
const TAG_BYTES = 16

/** Derives its keys from the session's key, so that texts sealed before a restart can be opened after it. */
export function createTextSealer(sessionKey: string): TextSealer {
  // Harnesses store seals, so this label must not change.
  const keys = Buffer.from(hkdfSync('sha256', sessionKey, '', 'polar vault', 64))
  const cipherKey = keys.subarray(0, 32)
  const nonceKey = keys.subarray(32)
  return {
    seal(text) {
      const plain = Buffer.from(text, 'utf8')
      // Derived from the text: two texts never share a nonce, and equal texts have equal seals.
      const nonce = createHmac('sha256', nonceKey).update(plain).digest().subarray(0, NONCE_BYTES)
      const cipher = createCipheriv('aes-256-gcm', cipherKey, nonce)
      const sealed = Buffer.concat([nonce, cipher.update(plain), cipher.final(), cipher.getAuthTag()])
      return sealed.toString('base64url')
    },
    open(sealed) {
      const bytes = Buffer.from(sealed, 'base64url')
      if (bytes.length < NONCE_BYTES + TAG_BYTES || bytes.toString('base64url') !== sealed) return undefined
      const decipher = createDecipheriv('aes-256-gcm', cipherKey, bytes.subarray(0, NONCE_BYTES))
      decipher.setAuthTag(bytes.subarray(-TAG_BYTES))
      try {
        const plain = [decipher.update(bytes.subarray(NONCE_BYTES, -TAG_BYTES)), decipher.final()]
        return Buffer.concat(plain).toString('utf8')
      } catch {
        return undefined
      }
    },
  }
}
