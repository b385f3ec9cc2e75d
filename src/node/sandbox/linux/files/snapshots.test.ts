import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { Snapshots } from './snapshots.ts'

const DAY_MS = 24 * 60 * 60 * 1000
const MB = 1024 * 1024

let dir: string
let now: number
let inUse: Set<string>

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-snapshots-'))
  now = Date.now()
  inUse = new Set()
})
afterEach(() => rm(dir, { recursive: true, force: true }))

function open(more: { maxMb?: number; discard?(name: string): Promise<boolean> } = {}): Snapshots {
  const { maxMb = 1000, ...deps } = more
  const limits = { snapshotsMaxGb: maxMb / 1024, snapshotsMaxDays: 10 }
  return new Snapshots(dir, limits, { now: () => now, inUse: async () => inUse, ...deps })
}
/** Adds a snapshot of a megabyte, a minute after the previous one. */
async function add(snapshots: Snapshots, name: string, below: readonly string[] = []): Promise<void> {
  now += 60_000
  await snapshots.add(name, below, (draft) => writeFile(join(draft, 'file'), Buffer.alloc(MB)))
  await snapshots[Symbol.asyncDispose]()
}
const names = async () => (await readdir(join(dir, 'snapshots'))).toSorted()

test('prune() removes the least recently used snapshots over the size limit', async () => {
  await using snapshots = open({ maxMb: 3.5 })
  for (const name of ['a', 'b', 'c']) await add(snapshots, name)
  now += 60_000
  expect(await snapshots.use('a')).toEqual(['a'])
  await add(snapshots, 'd')
  expect(await names()).toEqual(['a', 'c', 'd'])
  await expect(snapshots.use('b')).rejects.toMatchObject({ code: 'runtime.image-missing' })
})

test('prune() removes snapshots that were not used for too long, whatever their size', async () => {
  await using snapshots = open()
  for (const name of ['a', 'b']) await add(snapshots, name)
  now += 9 * DAY_MS
  await snapshots.use('b')
  expect(await snapshots.prune()).toEqual([])
  now += 2 * DAY_MS
  expect(await snapshots.prune()).toEqual(['a'])
  now += 9 * DAY_MS
  expect(await snapshots.prune()).toEqual(['b'])
})

test('prune() keeps snapshots that a sandbox or another snapshot uses', async () => {
  await using snapshots = open({ maxMb: 0.1 })
  inUse.add('used').add('top')
  for (const name of ['used', 'free', 'bottom']) await add(snapshots, name)
  await add(snapshots, 'top', ['bottom'])
  expect(await snapshots.prune()).toEqual([])
  expect(await names()).toEqual(['bottom', 'top', 'used'])
  expect(await snapshots.use('top')).toEqual(['top', 'bottom'])
  inUse.clear()
  expect((await snapshots.prune()).toSorted()).toEqual(['bottom', 'top', 'used'])
  expect(await names()).toEqual([])
})

test('prune() keeps a snapshot that a sandbox starts from at the same time', async () => {
  await using snapshots = open({ maxMb: 0.1 })
  await add(snapshots, 'a')
  let asked = 0
  const late = new Snapshots(
    dir,
    { snapshotsMaxGb: 0.000_1, snapshotsMaxDays: 10 },
    { now: () => now, inUse: async () => ((asked += 1) > 1 ? new Set(['a']) : new Set()) },
  )
  expect(await late.prune()).toEqual([])
  expect(await names()).toEqual(['a'])
})

test('prune() keeps a snapshot whose data is still in use, and removes it later', async () => {
  let isFree = false
  await using snapshots = open({ maxMb: 0.1, discard: async () => isFree })
  await add(snapshots, 'a')
  expect(await snapshots.prune()).toEqual([])
  isFree = true
  expect(await snapshots.prune()).toEqual(['a'])
})

test('add() keeps an existing snapshot, and a failed add() leaves no files', async () => {
  await using snapshots = open()
  await add(snapshots, 'a')
  await snapshots.add('a', [], () => Promise.reject(new Error('not asked')))
  await expect(snapshots.add('b', [], () => Promise.reject(new Error('no room')))).rejects.toThrow('no room')
  expect(await names()).toEqual(['a'])
  expect(() => snapshots.folderOf('../a')).toThrow('letters, digits and dashes')
})
