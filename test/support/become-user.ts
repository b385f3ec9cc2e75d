import { mkdtempSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Gives up root for the rest of this process. The user may not write to the home of root, so caches go elsewhere. */
export function becomeUser(): void {
  if (process.getuid?.() !== 0) return
  process.setgroups?.([])
  process.setgid?.(1_900_001)
  process.setuid?.(1_900_001)
  process.env['XDG_CACHE_HOME'] = mkdtempSync(join(tmpdir(), 'polar-cache-'))
}
