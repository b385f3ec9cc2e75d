import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Drops root for the rest of this process. The user cannot write to root's HOME, so caches are in another folder. */
export function becomeUser(): void {
  if (process.getuid?.() !== 0) return
  process.setgroups?.([])
  process.setgid?.(1_900_001)
  process.setuid?.(1_900_001)
  process.env['XDG_CACHE_HOME'] = mkdtempSync(join(tmpdir(), 'polar-cache-'))
}
