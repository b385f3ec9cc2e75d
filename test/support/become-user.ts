import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { test } from 'vitest'

/**
 * Drops root for the rest of this process, so that `file` runs as a user without privileges. Each test file has its own
 * process. In a run of an ordinary user `file` itself does so, and a skipped test says that. The user cannot write to root's
 * HOME, so caches are in another folder.
 */
export function becomeUser(file: string): boolean {
  if (process.getuid?.() !== 0) {
    test(`${file} as an ordinary user`, ({ skip }) =>
      skip(`this is the run of an ordinary user: ${file} has these tests`))
    return false
  }
  process.setgroups?.([])
  process.setgid?.(1_900_001)
  process.setuid?.(1_900_001)
  process.env['XDG_CACHE_HOME'] = mkdtempSync(join(tmpdir(), 'polar-cache-'))
  return true
}
