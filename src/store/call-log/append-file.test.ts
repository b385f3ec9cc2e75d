import { open, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { createLimit } from '../../lib/async/limit.ts'
import { inScratch } from '../store.contract.ts'
import { AppendFile, type AppendFileDeps, type FileIo, nodeFileIo } from './append-file.ts'
import { BufferPool } from './byte-writer.ts'

test('appends during a write are batched in one write', async () => {
  const { io, release, writes } = heldIo()
  const file = createFile(io)
  put(file, 'a')
  const first = file.flush()
  const others = ['b', 'c', 'd', 'e', 'f', 'g', 'h'].map((text) => {
    put(file, text)
    return file.flush()
  })
  release()
  await first
  expect(writes).toEqual(['a', 'bcdefgh'])
  release()
  await Promise.all(others)
  expect(writes).toEqual(['a', 'bcdefgh'])
})

test('a flush resolves after its own bytes were written, and not before', async () => {
  const { io, release } = heldIo()
  const file = createFile(io)
  const settled: string[] = []
  put(file, 'a')
  const a = file.flush().then(() => settled.push('a'))
  put(file, 'b')
  const b = file.flush().then(() => settled.push('b'))
  await nextTurn()
  expect(settled).toEqual([])
  release()
  await a
  expect(settled).toEqual(['a'])
  release()
  await b
})

test('records that are not awaited are written soon, in one batch', async () => {
  const { io, release, writes } = heldIo()
  const file = createFile(io)
  put(file, 'a')
  put(file, 'b')
  expect(writes).toEqual([])
  await expect.poll(() => writes).toEqual(['ab'])
  release()
})

test('a partial write is continued', async () => {
  await inScratch(async (dir) => {
    await using handle = await open(join(dir, 'file'), 'w')
    const io = {
      ...nodeFileIo,
      write: (fd: number, bytes: Buffer, at: number) => nodeFileIo.write(fd, bytes.subarray(0, 3), at),
    }
    const file = createFile(io, {}, handle.fd)
    put(file, 'one two three')
    await file.flush()
    put(file, ' four')
    await file.end()
    expect(file.size).toBe(18)
    expect(await readFile(join(dir, 'file'), 'utf8')).toBe('one two three four')
  })
})

test('bytes that could not be encoded are removed', async () => {
  const { io, release, writes } = heldIo()
  const file = createFile(io)
  put(file, 'a')
  const broken = (): void =>
    file.append((writer) => {
      writer.putText('half')
      throw new Error('no more')
    })
  expect(broken).toThrow('no more')
  put(file, 'b')
  release()
  await file.flush()
  expect(writes).toEqual(['ab'])
})

test('after the first error all promises resolve, and nothing more is written', async () => {
  const errors: unknown[] = []
  const writes: string[] = []
  const io: FileIo = {
    write: (_fd, bytes) => {
      writes.push(bytes.toString())
      return Promise.reject(Object.assign(new Error('full'), { code: 'ENOSPC' }))
    },
    datasync: () => Promise.reject(new Error('not asked for')),
  }
  const file = createFile(io, { onFailure: (error) => errors.push(error) })
  put(file, 'a')
  const first = file.flush()
  put(file, 'b')
  await Promise.all([first, file.flush()])
  put(file, 'c')
  await file.flush()
  await file.end()
  expect(writes).toEqual(['a'])
  expect(errors).toMatchObject([{ code: 'ENOSPC' }])
  expect(file.size).toBe(0)
})

test('a write of zero bytes without an error is a failure, not a loop', async () => {
  const errors: unknown[] = []
  const io = { ...nodeFileIo, write: () => Promise.resolve(0) }
  const file = createFile(io, { onFailure: (error) => errors.push(error) })
  put(file, 'a')
  await file.flush()
  expect(errors).toHaveLength(1)
})

test('a full device is a failure', async (context) => {
  const handle = await open('/dev/full', 'w').catch((error: Error) => context.skip(`no /dev/full: ${error.message}`))
  await using full = handle
  const errors: unknown[] = []
  const file = createFile(nodeFileIo, { onFailure: (error) => errors.push(error) }, full.fd)
  put(file, 'a')
  await file.flush()
  await file.end()
  expect(errors).toMatchObject([{ code: 'ENOSPC' }])
})

test('syncs run in the background, one for many writes', async () => {
  const { io, synced } = countedIo()
  const file = createFile(io)
  for (let n = 0; n < 20; n += 1) {
    put(file, 'x')
    await file.flush()
  }
  expect(synced()).toBe(0)
  await expect.poll(synced).toBe(1)
  await file.end()
  expect(synced()).toBe(1)
  put(file, 'y')
  await file.end()
  expect(synced()).toBe(2)
})

test('with durability "disk" every awaited append is synced, and concurrent ones share a sync', async () => {
  const { io, synced } = countedIo()
  const file = createFile(io, { durability: 'disk' })
  put(file, 'a')
  await file.settle()
  expect(synced()).toBe(1)
  await Promise.all(
    Array.from({ length: 10 }, () => {
      put(file, 'b')
      return file.settle()
    }),
  )
  expect(synced()).toBeLessThanOrEqual(3)
})

test('a failed sync is final too', async () => {
  const errors: unknown[] = []
  const io = {
    ...countedIo().io,
    datasync: () => Promise.reject(Object.assign(new Error('bad disk'), { code: 'EIO' })),
  }
  const file = createFile(io, { durability: 'disk', onFailure: (error) => errors.push(error) })
  put(file, 'a')
  await file.settle()
  expect(errors).toMatchObject([{ code: 'EIO' }])
})

test('end() waits for a running write after a failed sync', async () => {
  const { io, release } = heldIo()
  let ended = false
  const failing = { ...io, datasync: () => Promise.reject(new Error('bad disk')) }
  const file = createFile(failing, { onFailure: () => undefined })
  put(file, 'a')
  const first = file.flush()
  release()
  await first
  const sync = file.sync()
  put(file, 'b')
  void file.flush()
  await sync
  const end = file.end().then(() => {
    ended = true
  })
  await nextTurn()
  expect(ended).toBe(false)
  release()
  await end
})

test('end() waits for every running sync, not only for the one that covers the end', async () => {
  const held: (() => void)[] = []
  const io: FileIo = {
    write: (_fd, bytes) => Promise.resolve(bytes.length),
    datasync: () => (held.length > 0 ? Promise.resolve() : new Promise((resolve) => held.push(resolve))),
  }
  const file = createFile(io, { durability: 'disk', syncLimit: createLimit(2) })
  put(file, 'a')
  const first = file.settle()
  await expect.poll(() => held.length).toBe(1)
  let ended = false
  put(file, 'b')
  const end = file.end().then(() => {
    ended = true
  })
  await nextTurn()
  expect(ended).toBe(false)
  held[0]?.()
  await Promise.all([first, end])
})

function put(file: AppendFile, text: string): void {
  file.append((writer) => writer.putText(text))
}

function createFile(io: FileIo, deps: Partial<AppendFileDeps> = {}, fd = -1): AppendFile {
  const onFailure = (error: unknown): void => expect.unreachable(String(error))
  const rest = { pool: new BufferPool(), syncLimit: createLimit(1), durability: 'process', onFailure } as const
  return new AppendFile(fd, 0, { io, ...rest, ...deps })
}

/** Writes that complete only when released, one per call. */
function heldIo(): { io: FileIo; release: () => void; writes: string[] } {
  const writes: string[] = []
  const held: (() => void)[] = []
  let released = 0
  const io: FileIo = {
    write: async (_fd, bytes) => {
      writes.push(bytes.toString())
      if (released > 0) released -= 1
      else await new Promise<void>((resolve) => held.push(resolve))
      return bytes.length
    },
    datasync: () => Promise.resolve(),
  }
  const release = (): void => {
    const next = held.shift()
    if (next === undefined) released += 1
    else next()
  }
  return { io, release, writes }
}

function countedIo(): { io: FileIo; synced: () => number } {
  let synced = 0
  const io: FileIo = {
    write: (_fd, bytes) => Promise.resolve(bytes.length),
    datasync: async () => {
      synced += 1
      await nextTurn()
    },
  }
  return { io, synced: () => synced }
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}
