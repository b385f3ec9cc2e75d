import { createRequire } from 'node:module'
import type * as Undici from 'undici'

const require = createRequire(import.meta.url)

/** Loads undici on first use: its hundred modules take a fifth of the time in which a command starts, and few commands need it. */
export function undici(): typeof Undici {
  return require('undici') as typeof Undici
}
