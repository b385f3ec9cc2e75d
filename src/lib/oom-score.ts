import { readFileSync, writeFileSync } from 'node:fs'

/** Below every ordinary process. At -1000 the kernel would never kill this process, even if only it had the memory. */
const PROTECTED = -900

/**
 * Makes this process, and the processes that it starts from now on, the last choice of the kernel's out-of-memory killer.
 * Needs CAP_SYS_RESOURCE; returns false without it.
 */
export function protectFromOutOfMemory(file = '/proc/self/oom_score_adj'): boolean {
  try {
    if (Number(readFileSync(file, 'utf8')) > PROTECTED) writeFileSync(file, String(PROTECTED))
    return true
  } catch {
    return false
  }
}
