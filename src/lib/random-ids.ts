import { randomBytes } from 'node:crypto'

/** Creates ids that sort by creation time (48 bits of milliseconds) and are unguessable and unique (80 random bits). */
export function randomIds(now: () => number): { next(prefix: string): string } {
  return {
    next(prefix) {
      const time = Math.floor(now()).toString(16).padStart(12, '0')
      return `${prefix}_${time}${randomBytes(10).toString('hex')}`
    },
  }
}
