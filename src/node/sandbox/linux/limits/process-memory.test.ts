import { readFile } from 'node:fs/promises'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { parseStat, readProcesses } from './process-memory.ts'

const stat = (name: string, state: string): string =>
  `12 (${name}) ${state} 7 12 12 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 5555 1000000 250 18446744073709551615 1`

test('parseStat() reads parent, start and memory for any command name', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary-ascii' }), (name) => {
      expect(parseStat(12, stat(name, 'S'), 4096)).toEqual({
        pid: 12,
        parent: 7,
        started: '5555',
        residentBytes: 250 * 4096,
      })
    }),
  )
})

test.each(['Z', 'X'])('parseStat() returns undefined for a process in the state %s', (state) => {
  expect(parseStat(12, stat('sh', state), 4096)).toBeUndefined()
})

test('readProcesses() finds this process and its memory', async () => {
  const own = (await readProcesses()).find(({ pid }) => pid === process.pid)!
  expect(own.parent).toBe(process.ppid)
  const kilobytes = Number(/^VmRSS:\s+(\d+)/m.exec(await readFile('/proc/self/status', 'utf8'))![1])
  expect(own.residentBytes).toBeGreaterThan(kilobytes * 512)
  expect(own.residentBytes).toBeLessThan(kilobytes * 2048)
})
