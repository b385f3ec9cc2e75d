import { randomBytes } from 'node:crypto'

/** Ids that sort by time of creation (48 bits of milliseconds) and cannot be guessed or repeated (80 random bits). */
export function randomIds(now: () => number): { next(prefix: string): string } {
  return {
    next(prefix) {
      const time = Math.floor(now()).toString(16).padStart(12, '0')
      return `${prefix}_${time}${randomBytes(10).toString('hex')}`
    },
  }
}
