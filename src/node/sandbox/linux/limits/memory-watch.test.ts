import fc from 'fast-check'
import { expect, test } from 'vitest'
import { processTreeOf, MemoryWatch, type WatchDeps, type Watched } from './memory-watch.ts'
import type { ProcessMemory } from './process-memory.ts'

const MB = 1024 * 1024

interface Fake {
  pid: number
  parent: number
  residentMb: number
  /** Absent: the kernel does not report it. */
  pssMb?: number
}

/** A machine with a list of processes; killing a process removes it from the list. */
function createMachine(list: Fake[]): { deps: WatchDeps; killed: number[]; processes: Fake[] } {
  const killed: number[] = []
  const processes = [...list]
  const find = (pid: number) => processes.find((each) => each.pid === pid)
  const deps: WatchDeps = {
    readProcesses: async () => processes.map((each) => toMemory(each)),
    async readPss(pid) {
      const { pssMb } = find(pid) ?? {}
      return pssMb === undefined ? undefined : pssMb * MB
    },
    readAvailable: async () => 0,
    async kill({ pid }) {
      killed.push(pid)
      processes.splice(processes.indexOf(find(pid)!), 1)
    },
  }
  return { deps, killed, processes }
}

function toMemory({ pid, parent, residentMb }: Fake): ProcessMemory {
  return { pid, parent, started: String(pid), residentBytes: residentMb * MB }
}

function watched(limitMb: number, roots: number[], storedMb = 0): Watched {
  return { limitBytes: limitMb * MB, roots: () => roots, storedBytes: async () => storedMb * MB }
}

test('a sandbox within its limit keeps all of its processes', async () => {
  const { deps, killed } = createMachine([
    { pid: 10, parent: 1, residentMb: 5 },
    { pid: 11, parent: 10, residentMb: 60 },
    { pid: 12, parent: 11, residentMb: 30 },
    { pid: 20, parent: 1, residentMb: 500 },
  ])
  const watch = new MemoryWatch(deps)
  using memory = watch.add(watched(100, [10]))
  await watch.scan()
  expect([killed, memory.kills]).toEqual([[], 0])
})

test('the largest processes of a sandbox over its limit are killed until the rest fits', async () => {
  const { deps, killed } = createMachine([
    { pid: 10, parent: 1, residentMb: 5 },
    { pid: 11, parent: 10, residentMb: 30 },
    { pid: 12, parent: 11, residentMb: 90 },
    { pid: 13, parent: 12, residentMb: 80 },
    { pid: 20, parent: 1, residentMb: 1000 },
  ])
  const watch = new MemoryWatch(deps)
  using memory = watch.add(watched(100, [10]))
  await watch.scan()
  // 5 + 30 + 90 + 80 exceed the limit by 105: without the largest process, by 15.
  expect([killed, memory.kills]).toEqual([[12, 13], 2])
})

test('memory that processes share counts once', async () => {
  const children = Array.from({ length: 8 }, (_, index) => ({ pid: 11 + index, parent: 10, residentMb: 64, pssMb: 8 }))
  const { deps, killed } = createMachine([{ pid: 10, parent: 1, residentMb: 5, pssMb: 0 }, ...children])
  const watch = new MemoryWatch(deps)
  using memory = watch.add(watched(100, [10]))
  await watch.scan()
  expect(killed).toEqual([])
  expect(await memory.measure()).toBe(64 * MB)
})

test('files in memory count', async () => {
  const { deps, killed } = createMachine([
    { pid: 10, parent: 1, residentMb: 5 },
    { pid: 11, parent: 10, residentMb: 30, pssMb: 30 },
  ])
  const watch = new MemoryWatch(deps)
  using _ = watch.add(watched(100, [10], 80))
  await watch.scan()
  expect(killed).toEqual([11])
})

test('a sandbox without a limit is measured, and keeps its processes', async () => {
  const { deps, killed } = createMachine([{ pid: 11, parent: 10, residentMb: 500 }])
  const watch = new MemoryWatch(deps)
  using memory = watch.add({ ...watched(0, [10]), limitBytes: undefined })
  await watch.scan()
  expect([killed, memory.kills, await memory.measure()]).toEqual([[], undefined, 500 * MB])
})

test('a sandbox that is no longer watched keeps its processes', async () => {
  const { deps, killed } = createMachine([{ pid: 11, parent: 10, residentMb: 500 }])
  const watch = new MemoryWatch(deps)
  watch.add(watched(100, [10]))[Symbol.dispose]()
  await watch.scan()
  expect(killed).toEqual([])
})

test('after a scan no sandbox is over its limit, and no process outside of sandboxes was killed', async () => {
  const process = fc.record({
    parent: fc.integer({ min: 0, max: 30 }),
    residentMb: fc.integer({ min: 0, max: 200 }),
  })
  await fc.assert(
    fc.asyncProperty(fc.array(process, { maxLength: 30 }), fc.integer({ min: 0, max: 400 }), async (list, limitMb) => {
      const all = list.map((each, index) => ({ pid: index + 1, ...each }))
      const { deps, killed } = createMachine(all)
      const watch = new MemoryWatch(deps)
      using memory = watch.add(watched(limitMb, [3]))
      const members = new Set(processTreeOf([3], await deps.readProcesses()).map(({ pid }) => pid))
      await watch.scan()
      expect(killed.every((pid) => members.has(pid))).toBe(true)
      expect(memory.kills).toBe(killed.length)
      const left = all.filter(({ pid }) => members.has(pid) && !killed.includes(pid))
      expect(left.reduce((sum, { residentMb }) => sum + residentMb, 0)).toBeLessThanOrEqual(limitMb)
    }),
  )
})
