import { readFile } from 'node:fs/promises'
import { readProcesses, type ProcessMemory } from './process-memory.ts'
import { signalProcess, type ProcessRef } from '../process/processes.ts'

const TICK_MS = 200
/** A scan without any other reason. */
const TICKS_PER_SCAN = 5
/** A scan is due as soon as this much of the machine's free memory is gone. */
const SUDDEN_BYTES = 64 * 1024 * 1024

/** A sandbox whose memory the kernel does not limit. */
export interface Watched {
  /** Undefined: measured only. */
  limitBytes: number | undefined
  /** Processes that were started for the sandbox; their descendants belong to it as well. */
  roots(): Iterable<number>
  /** Bytes in its file systems that are kept in memory. */
  storedBytes(): Promise<number>
}

/** What the watch knows about a sandbox. Disposing of it ends the watch. */
export interface WatchedMemory extends Disposable {
  /** How many processes were killed for the limit; undefined without one. */
  readonly kills: number | undefined
  /** Proportional set size of its processes and `storedBytes`, measured now. */
  measure(): Promise<number>
}

export interface WatchDeps {
  readProcesses(): Promise<readonly ProcessMemory[]>
  /** Proportional set size in bytes; undefined where the kernel does not tell. */
  readPss(pid: number): Promise<number | undefined>
  readAvailable(): Promise<number>
  kill(ref: ProcessRef): Promise<void>
}

const SYSTEM: WatchDeps = {
  readProcesses,
  async readPss(pid) {
    const text = await readFile(`/proc/${pid}/smaps_rollup`, 'latin1').catch(() => '')
    const kilobytes = /^Pss:\s+(\d+) kB/m.exec(text)?.[1]
    return kilobytes === undefined ? undefined : Number(kilobytes) * 1024
  },
  async readAvailable() {
    const text = await readFile('/proc/meminfo', 'latin1').catch(() => '')
    return Number(/^MemAvailable:\s+(\d+) kB/m.exec(text)?.[1] ?? 0) * 1024
  },
  kill: (ref) => signalProcess(ref, 'SIGKILL'),
}

interface WatchEntry {
  watched: Watched
  limitBytes: number
  kills: number
}

/**
 * Substitute for memory control groups, where this process may not make any: sums up the memory of each sandbox's processes
 * and kills the largest of them while the sum is over the limit, as the kernel would. It acts after the fact, within a second
 * or as soon as the machine's free memory falls; it does not see memory of the kernel, nor files in memory that no process
 * has mapped (`memfd_create`). For those the out-of-memory killer prefers processes of sandboxes.
 */
export class MemoryWatch {
  readonly #deps: WatchDeps
  readonly #entries = new Set<WatchEntry>()
  #timer: NodeJS.Timeout | undefined
  #ticks = 0
  #available = 0
  #isScanning = false

  constructor(deps: WatchDeps = SYSTEM) {
    this.#deps = deps
  }

  add(watched: Watched): WatchedMemory {
    const { limitBytes } = watched
    const entry = limitBytes === undefined ? undefined : this.#enter({ watched, limitBytes, kills: 0 })
    return {
      get kills() {
        return entry?.kills
      },
      measure: async () => (await this.#measure(watched, await this.#deps.readProcesses())).totalBytes,
      [Symbol.dispose]: () => {
        if (entry !== undefined) this.#leave(entry)
      },
    }
  }

  #enter(entry: WatchEntry): WatchEntry {
    this.#entries.add(entry)
    this.#timer ??= setInterval(() => void this.#tick(), TICK_MS).unref()
    return entry
  }

  #leave(entry: WatchEntry): void {
    this.#entries.delete(entry)
    if (this.#entries.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }

  /** Enforces every limit once. */
  async scan(): Promise<void> {
    const processes = await this.#deps.readProcesses()
    for (const entry of this.#entries) await this.#enforce(entry, processes)
  }

  async #tick(): Promise<void> {
    if (this.#isScanning) return
    this.#isScanning = true
    try {
      const available = await this.#deps.readAvailable()
      this.#ticks += 1
      const isDue = this.#ticks % TICKS_PER_SCAN === 0 || this.#available - available > SUDDEN_BYTES
      this.#available = isDue ? available : Math.max(this.#available, available)
      if (isDue) await this.scan()
    } catch {
      // As without a free file descriptor: the next tick tries again.
    } finally {
      this.#isScanning = false
    }
  }

  async #enforce(entry: WatchEntry, processes: readonly ProcessMemory[]): Promise<void> {
    const { watched, limitBytes } = entry
    const members = membersOf(watched.roots(), processes)
    const resident = members.reduce((sum, { residentBytes }) => sum + residentBytes, 0)
    // Pages that processes share are in the resident size of each: an upper bound, and cheap to read.
    if (resident + (await watched.storedBytes()) <= limitBytes) return
    const { totalBytes, shares } = await this.#measure(watched, processes)
    let excess = totalBytes - limitBytes
    for (const { member, bytes } of shares.sort((a, b) => b.bytes - a.bytes)) {
      if (excess <= 0) return
      entry.kills += 1
      await this.#deps.kill(member)
      excess -= bytes
    }
  }

  async #measure(
    watched: Watched,
    processes: readonly ProcessMemory[],
  ): Promise<{ totalBytes: number; shares: { member: ProcessMemory; bytes: number }[] }> {
    const shares = await Promise.all(
      membersOf(watched.roots(), processes).map(async (member) => ({
        member,
        bytes: (await this.#deps.readPss(member.pid)) ?? member.residentBytes,
      })),
    )
    const stored = await watched.storedBytes()
    return { totalBytes: shares.reduce((sum, { bytes }) => sum + bytes, stored), shares }
  }
}

/** The roots and all of their descendants. */
export function membersOf(roots: Iterable<number>, processes: readonly ProcessMemory[]): ProcessMemory[] {
  const children = Map.groupBy(processes, ({ parent }) => parent)
  const members = new Set<number>(roots)
  // A set hands out what is added while it is walked through.
  for (const pid of members) for (const child of children.get(pid) ?? []) members.add(child.pid)
  return processes.filter(({ pid }) => members.has(pid))
}
