import { readFileSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import type { ProcessRef } from '../process/processes.ts'

/** Number of files read concurrently: a sandbox may have thousands of processes. */
const AT_ONCE = 64
/** `AT_PAGESZ` of `linux/auxvec.h`. */
const PAGE_SIZE_KEY = 6n
const DEFAULT_PAGE_BYTES = 4096

export interface ProcessMemory extends ProcessRef {
  parent: number
  /** Includes pages that the process shares with others. */
  residentBytes: number
}

/** Reads all processes of this machine from `/proc/<pid>/stat`, which every user may read. */
export async function readProcesses(): Promise<ProcessMemory[]> {
  const pageBytes = readPageBytes()
  const names = (await readdir('/proc')).filter((name) => /^\d+$/.test(name))
  const found: ProcessMemory[] = []
  for (let at = 0; at < names.length; at += AT_ONCE) {
    const texts = names.slice(at, at + AT_ONCE).map(async (name) => {
      const text = await readFile(`/proc/${name}/stat`, 'latin1').catch(() => undefined)
      return text === undefined ? undefined : parseStat(Number(name), text, pageBytes)
    })
    found.push(...(await Promise.all(texts)).filter((each) => each !== undefined))
  }
  return found
}

/** Returns undefined for a process that has ended. */
export function parseStat(pid: number, text: string, pageBytes: number): ProcessMemory | undefined {
  // The command name is in brackets and may contain any character, brackets too.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
  const [state, parent] = fields
  if (state === undefined || state === 'Z' || state === 'X' || fields.length < 22) return undefined
  return { pid, parent: Number(parent), started: fields[19]!, residentBytes: Number(fields[21]) * pageBytes }
}

/** Page size of this machine. The kernel passes it to every process, in pairs of a key and a value. */
function readPageBytes(): number {
  const pairs = readAuxiliary()
  for (let at = 0; at + 16 <= pairs.length; at += 16)
    if (pairs.readBigUInt64LE(at) === PAGE_SIZE_KEY) return Number(pairs.readBigUInt64LE(at + 8))
  return DEFAULT_PAGE_BYTES
}

/** A process that was root before may not read this file. */
function readAuxiliary(): Buffer {
  try {
    return readFileSync('/proc/self/auxv')
  } catch {
    return Buffer.alloc(0)
  }
}
