import { readFileSync, writeFileSync } from 'node:fs'

/** Below every ordinary process. At -1000 the kernel would never kill this process, even if only it had the memory. */
const PROTECTED = -900
const SCORE_FILE = '/proc/self/oom_score_adj'

/**
 * Makes this process, and the processes that it starts from now on, the last choice of the kernel's out-of-memory killer.
 * Needs CAP_SYS_RESOURCE; returns false without it.
 */
export function protectFromOutOfMemory(file = SCORE_FILE): boolean {
  try {
    if (Number(readFileSync(file, 'utf8')) > PROTECTED) writeFileSync(file, String(PROTECTED))
    return true
  } catch {
    return false
  }
}

/** Makes this process the first choice of the out-of-memory killer. Elsewhere than on Linux there is no such file. */
export function offerToOutOfMemory(): void {
  try {
    writeFileSync(SCORE_FILE, '1000')
  } catch {
    // Then the kernel decides without a score.
  }
}
