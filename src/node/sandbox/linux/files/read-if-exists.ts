import { readFileSync } from 'node:fs'

/** Returns an empty text for a file that does not exist or cannot be read. */
export function readIfExists(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
