import { readFileSync } from 'node:fs'

/** Reads package.json, which is two folders up both in the sources and in the build. */
export function readVersion(): string {
  const text = readFileSync(new URL('../../package.json', import.meta.url), 'utf8')
  return (JSON.parse(text) as { version: string }).version
}
