import { accessSync, constants, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

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

/** Returns what `protectFromOutOfMemory` would return, without changing this process. `proc` is the folder of a process. */
export function mayProtectFromOutOfMemory(proc = '/proc/self'): boolean {
  try {
    const file = join(proc, 'oom_score_adj')
    if (Number(readFileSync(file, 'utf8')) <= PROTECTED) return true
    accessSync(file, constants.W_OK)
    return hasSysResource(proc)
  } catch {
    return false
  }
}

const CAP_SYS_RESOURCE = 24n
/** The mapping of the first user namespace. The kernel ignores capabilities that hold in another user namespace only. */
const WHOLE_MAPPING = /^\s*0\s+0\s+4294967295\s*$/

function hasSysResource(proc: string): boolean {
  const [, effective] = /^CapEff:\s+([0-9a-f]+)$/m.exec(readFileSync(join(proc, 'status'), 'utf8')) ?? []
  if (effective === undefined || !WHOLE_MAPPING.test(readFileSync(join(proc, 'uid_map'), 'utf8'))) return false
  return (BigInt(`0x${effective}`) & (1n << CAP_SYS_RESOURCE)) !== 0n
}

/** Makes this process the first choice of the out-of-memory killer. Elsewhere than on Linux there is no such file. */
export function offerToOutOfMemory(): void {
  try {
    writeFileSync(SCORE_FILE, '1000')
  } catch {
    // Then the kernel decides without a score.
  }
}
