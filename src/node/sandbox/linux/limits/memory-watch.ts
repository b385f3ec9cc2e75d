import { readFile } from 'node:fs/promises'
import { readProcesses, type ProcessMemory } from './process-memory.ts'
import { signalProcess, type ProcessRef } from '../process/processes.ts'

const TICK_MS = 200
/** Ticks between two regular scans. */
const TICKS_PER_SCAN = 5
/** A scan also runs when the machine's free memory has dropped by this much. */
const SUDDEN_BYTES = 64 * 1024 * 1024

/** A sandbox whose memory the kernel does not limit. */
export interface Watched {
  /** Undefined: the memory is only measured. */
  limitBytes: number | undefined
  /** Processes that were started for the sandbox; their descendants belong to it too. */
  roots(): Iterable<number>
  /** Bytes of the sandbox's file systems that are kept in memory. */
  storedBytes(): Promise<number>
}

/** Disposing of it ends the watch. */
export interface WatchedMemory extends Disposable {
  /** Number of processes killed for the limit; undefined without a limit. */
  readonly kills: number | undefined
  /** Returns the proportional set size of the processes plus `storedBytes`. */
  measure(): Promise<number>
}

export interface WatchDeps {
  readProcesses(): Promise<readonly ProcessMemory[]>
  /** Proportional set size in bytes; undefined if the kernel does not report it. */
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
 * Replaces memory control groups if this process cannot create any: sums up the memory of each sandbox's processes and
 * kills the largest ones while the sum exceeds the limit, as the kernel would. It reacts late: within a second, or when
 * the machine's free memory drops. It does not count kernel memory or files in memory that no process has mapped
 * (`memfd_create`); against those, the out-of-memory killer prefers processes of sandboxes.
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
      // For example, no file descriptor was free. The next tick tries again.
    } finally {
      this.#isScanning = false
    }
  }

  async #enforce(entry: WatchEntry, processes: readonly ProcessMemory[]): Promise<void> {
    const { watched, limitBytes } = entry
    const members = processTreeOf(watched.roots(), processes)
    const resident = members.reduce((sum, { residentBytes }) => sum + residentBytes, 0)
    // Resident sizes count shared pages several times: an upper bound that is cheap to read.
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
      processTreeOf(watched.roots(), processes).map(async (member) => ({
        member,
        bytes: (await this.#deps.readPss(member.pid)) ?? member.residentBytes,
      })),
    )
    const stored = await watched.storedBytes()
    return { totalBytes: shares.reduce((sum, { bytes }) => sum + bytes, stored), shares }
  }
}

/** Returns the root processes and all their descendants. */
export function processTreeOf(roots: Iterable<number>, processes: readonly ProcessMemory[]): ProcessMemory[] {
  const children = Map.groupBy(processes, ({ parent }) => parent)
  const members = new Set<number>(roots)
  // Iteration over a set includes elements that are added meanwhile.
  for (const pid of members) for (const child of children.get(pid) ?? []) members.add(child.pid)
  return processes.filter(({ pid }) => members.has(pid))
}
