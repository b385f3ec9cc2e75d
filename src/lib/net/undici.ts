import { createRequire } from 'node:module'

type Undici = typeof import('undici')

let loaded: Undici | undefined

/** Loads undici on first use: its hundred modules take a fifth of the time in which a command starts, and few commands need it. */
export function undici(): Undici {
  loaded ??= createRequire(import.meta.url)('undici') as Undici
  return loaded
}
