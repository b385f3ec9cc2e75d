import { createHash, randomBytes } from 'node:crypto'
import {
  chmod,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  stat,
  symlink,
  truncate,
  utimes,
  writeFile,
} from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { systemClock } from '../lib/async/clock.ts'
import { RolloutError } from '../model/failure.ts'
import { type FileStore, type FileStoreOptions, openFileStore } from './files.ts'
import type { UploadInput } from './files/types.ts'
import { runs } from '../../test/support/runs.ts'

let dir: string
let store: FileStore
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-files-'))
  store = await open()
})
afterEach(() => rm(dir, { recursive: true, force: true }))

function open(more: Partial<FileStoreOptions> = {}): Promise<FileStore> {
  return openFileStore({ dir, clock: systemClock, minFreeBytes: 0, ...more })
}

function digestOf(bytes: Uint8Array): string {
  return `sha256:${createHash('sha256').update(bytes).digest('hex')}`
}

function inputOf(bytes: Uint8Array, more: Partial<UploadInput> = {}): UploadInput {
  return { nodeId: 'n1', sessionId: 'ses_1', attempt: 1, bytes: bytes.length, digest: digestOf(bytes), ...more }
}

/** Splits the bytes in chunks of any size, like a connection. */
function bodyOf(bytes: Uint8Array, pieceBytes = 65_536): ReadableStream<Uint8Array> {
  return ReadableStream.from(
    (function* () {
      for (let at = 0; at < bytes.length; at += pieceBytes) yield bytes.slice(at, at + pieceBytes)
    })(),
  )
}

/** A body whose sender disconnects after `after` bytes. */
function cutBody(bytes: Uint8Array, after: number): ReadableStream<Uint8Array> {
  return ReadableStream.from(
    (function* () {
      if (after > 0) yield bytes.slice(0, after)
      throw new Error('aborted')
    })(),
  )
}

async function failureOf(work: Promise<unknown>): Promise<{ code: string; status: number; message: string }> {
  try {
    await work
  } catch (error) {
    if (error instanceof RolloutError) return error.failure
    throw error
  }
  throw new Error('nothing was thrown')
}

async function upload(bytes: Uint8Array, more: Partial<UploadInput> = {}, by = store): Promise<string> {
  const { uploadId, offset } = await by.begin(inputOf(bytes, more))
  const state = await by.append(more.nodeId ?? 'n1', uploadId, offset, bodyOf(bytes.subarray(offset)))
  expect(state).toMatchObject({ isComplete: true, offset: bytes.length })
  return uploadId
}

async function read(path: string, range?: { offset: number; length?: number }): Promise<Buffer> {
  const { stream, bytes } = await store.open(path, range)
  const whole = Buffer.concat(await Array.fromAsync(stream))
  expect(whole.length).toBe(bytes)
  return whole
}

async function filesBelow(folder: string): Promise<string[]> {
  const entries = await readdir(join(dir, folder), { recursive: true, withFileTypes: true })
  return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name))
}

describe('an upload', () => {
  test('in parts is complete at the end, and stored under results', async () => {
    const bytes = randomBytes(3_000_000)
    const begun = await store.begin(inputOf(bytes))
    expect(begun).toMatchObject({ offset: 0, isComplete: false, bytes: bytes.length, sessionId: 'ses_1', attempt: 1 })
    for (let at = 0; at < bytes.length; at += 1_000_000) {
      const part = bytes.subarray(at, at + 1_000_000)
      const state = await store.append('n1', begun.uploadId, at, bodyOf(part), digestOf(part))
      expect(state).toMatchObject({ offset: at + part.length, isComplete: at + part.length === bytes.length })
      expect(await store.find('n1', begun.uploadId)).toEqual(state)
    }
    const kept = await store.keep('n1', begun.uploadId, { kind: 'result' })
    expect(kept).toEqual({
      path: expect.stringMatching(/^results\/[0-9a-f]{2}\/ses_1\.1\.json\.zst$/),
      digest: digestOf(bytes),
      bytes: bytes.length,
    })
    expect(await read(kept.path)).toEqual(bytes)
    expect(await filesBelow('uploads')).toEqual([])
    expect(await filesBelow('tmp')).toEqual([])
    expect((await stat(join(dir, kept.path))).mode & 0o777).toBe(0o600)
  })

  test('of an empty file is one empty part', async () => {
    const { uploadId } = await store.begin(inputOf(Buffer.alloc(0)))
    expect(await store.find('n1', uploadId)).toMatchObject({ isComplete: false })
    expect(await store.append('n1', uploadId, 0, bodyOf(Buffer.alloc(0)))).toMatchObject({ isComplete: true })
    expect(await read((await store.keep('n1', uploadId, { kind: 'artifact', path: 'a/b.log' })).path)).toHaveLength(0)
  })

  test('begun twice is one upload, and continues at its offset, also on another server', async () => {
    const bytes = randomBytes(1000)
    const { uploadId } = await store.begin(inputOf(bytes))
    await store.append('n1', uploadId, 0, bodyOf(bytes.subarray(0, 400)))
    const other = await open()
    expect(await other.begin(inputOf(bytes))).toMatchObject({ uploadId, offset: 400 })
    expect(await other.append('n1', uploadId, 400, bodyOf(bytes.subarray(400, 700)))).toMatchObject({ offset: 700 })
    expect(await store.append('n1', uploadId, 700, bodyOf(bytes.subarray(700)))).toMatchObject({ isComplete: true })
    expect(await read((await other.keep('n1', uploadId, { kind: 'result' })).path)).toEqual(bytes)
  })

  test('with any different field has another id', async () => {
    const bytes = randomBytes(10)
    const inputs = [
      {},
      { nodeId: 'n2' },
      { sessionId: 'ses_2' },
      { attempt: 2 },
      { bytes: 11 },
      { digest: digestOf(Buffer.alloc(1)) },
    ]
    const ids = await Promise.all(inputs.map(async (more) => (await store.begin(inputOf(bytes, more))).uploadId))
    expect(new Set(ids).size).toBe(inputs.length)
    expect(await store.find('n2', ids[0]!)).toBeUndefined()
  })

  test('ignores a repeated part', async () => {
    const bytes = randomBytes(1000)
    const { uploadId } = await store.begin(inputOf(bytes))
    await store.append('n1', uploadId, 0, bodyOf(bytes.subarray(0, 600)))
    for (const [from, to] of [
      [0, 600],
      [0, 100],
      [100, 600],
      [600, 600],
    ] as const) {
      expect(await store.append('n1', uploadId, from, bodyOf(bytes.subarray(from, to)))).toMatchObject({ offset: 600 })
    }
    await store.append('n1', uploadId, 600, bodyOf(bytes.subarray(600)))
    expect(await store.append('n1', uploadId, 600, bodyOf(bytes.subarray(600)))).toMatchObject({ isComplete: true })
    await store.keep('n1', uploadId, { kind: 'result' })
    expect(await store.append('n1', uploadId, 0, bodyOf(bytes))).toMatchObject({ isComplete: true, offset: 1000 })
  })

  test('refuses a part that does not start at its offset', async () => {
    const bytes = randomBytes(1000)
    const { uploadId } = await store.begin(inputOf(bytes))
    await store.append('n1', uploadId, 0, bodyOf(bytes.subarray(0, 600)))
    for (const [from, to] of [
      [601, 700],
      [1000, 1000],
      [500, 700],
      [0, 1000],
    ] as const) {
      expect(await failureOf(store.append('n1', uploadId, from, bodyOf(bytes.subarray(from, to))))).toMatchObject({
        code: 'request.conflict',
        status: 409,
      })
    }
    expect(await store.find('n1', uploadId)).toMatchObject({ offset: 600 })
  })

  test('stores nothing of a part that is truncated, does not match its digest, or is too long', async () => {
    const bytes = randomBytes(3_000_000)
    const { uploadId } = await store.begin(inputOf(bytes))
    const append = (offset: number, body: ReadableStream<Uint8Array>, digest?: string) =>
      store.append('n1', uploadId, offset, body, digest)
    await expect(append(0, cutBody(bytes, 2_000_000))).rejects.toMatchObject({ code: 'request.malformed' })
    expect(await store.find('n1', uploadId)).toMatchObject({ offset: 0 })
    await append(0, bodyOf(bytes.subarray(0, 1_000_000)))
    await expect(append(1_000_000, cutBody(bytes.subarray(1_000_000), 1_500_000))).rejects.toThrow(/truncated/)
    const wrong = append(1_000_000, bodyOf(randomBytes(1_500_000)), digestOf(bytes))
    expect(await failureOf(wrong)).toMatchObject({ code: 'request.malformed', status: 422 })
    const long = append(1_000_000, bodyOf(randomBytes(2_000_001)))
    expect(await failureOf(long)).toMatchObject({ code: 'request.malformed', status: 422 })
    expect(await store.find('n1', uploadId)).toMatchObject({ offset: 1_000_000 })
    expect(await append(1_000_000, bodyOf(bytes.subarray(1_000_000)))).toMatchObject({ isComplete: true })
    expect(await read((await store.keep('n1', uploadId, { kind: 'result' })).path)).toEqual(bytes)
  })

  test('that does not match its digest starts again', async () => {
    const bytes = randomBytes(1000)
    const { uploadId } = await store.begin(inputOf(bytes))
    await store.append('n1', uploadId, 0, bodyOf(randomBytes(500)))
    const last = await failureOf(store.append('n1', uploadId, 500, bodyOf(bytes.subarray(500))))
    expect(last).toMatchObject({
      code: 'request.conflict',
      message: expect.stringMatching(/send it again from byte 0/),
    })
    expect(await store.find('n1', uploadId)).toMatchObject({ offset: 0, isComplete: false })
    expect((await failureOf(store.keep('n1', uploadId, { kind: 'result' }))).code).toBe('request.conflict')
    await upload(bytes)
  })

  test('that a crash interrupted before the digest check is checked at the next request', async () => {
    const bytes = randomBytes(1000)
    const { uploadId } = await store.begin(inputOf(bytes))
    await store.append('n1', uploadId, 0, bodyOf(bytes.subarray(0, 400)))
    // State after a server was killed between the last count and the digest check.
    const folder = join(dir, 'uploads/n1', uploadId)
    const name = `400.${'0'.repeat(24)}`
    await writeFile(join(folder, `${name}.part`), bytes.subarray(400))
    await writeFile(join(folder, `${name}.counts`), '100\n600\n60')
    expect(await store.find('n1', uploadId)).toMatchObject({ offset: 1000, isComplete: false })
    expect(await store.append('n1', uploadId, 1000, bodyOf(Buffer.alloc(0)))).toMatchObject({ isComplete: true })
    expect(await read((await store.keep('n1', uploadId, { kind: 'result' })).path)).toEqual(bytes)
  })

  test('counts only complete lines after a crash', async () => {
    const bytes = randomBytes(1000)
    const { uploadId } = await store.begin(inputOf(bytes))
    const folder = join(dir, 'uploads/n1', uploadId)
    const name = `0.${'0'.repeat(24)}`
    await writeFile(join(folder, `${name}.part`), bytes)
    for (const [counts, offset] of [
      ['', 0],
      ['5', 0],
      ['5\n', 5],
      ['5\n70', 5],
      ['5\n70\n', 70],
      ['5\n\0\0\n', 5],
    ] as const) {
      await writeFile(join(folder, `${name}.counts`), counts)
      expect(await store.find('n1', uploadId)).toMatchObject({ offset })
    }
    await truncate(join(folder, `${name}.part`), 3)
    await store.append('n1', uploadId, 5, bodyOf(bytes.subarray(5, 999)))
    expect((await failureOf(store.append('n1', uploadId, 999, bodyOf(bytes.subarray(999))))).code).toBe(
      'request.conflict',
    )
  })
})

test('a stalled part is aborted when it is sent again over another connection', async () => {
  const started = Date.now()
  const now = (): number => started + (Date.now() - started) * 100
  store = await open({ clock: { now, after: (ms, call) => systemClock.after(ms / 100, call) } })
  const bytes = randomBytes(1000)
  const { uploadId } = await store.begin(inputOf(bytes))
  let cancelled = false
  const isReading = Promise.withResolvers<void>()
  let pulls = 0
  const hanging = new ReadableStream<Uint8Array>(
    {
      pull: (controller) => {
        if (pulls++ === 0) return controller.enqueue(bytes.slice(0, 100))
        isReading.resolve()
        return new Promise(() => {})
      },
      cancel: () => void (cancelled = true),
    },
    { highWaterMark: 0 },
  )
  const first = failureOf(store.append('n1', uploadId, 0, hanging))
  await isReading.promise
  const second = store.append('n1', uploadId, 0, bodyOf(bytes))
  expect(await second).toMatchObject({ isComplete: true })
  expect(await first).toMatchObject({ code: 'request.conflict', message: expect.stringMatching(/sent again/) })
  expect(cancelled).toBe(true)
})

test('concurrent uploads of the same file get the same result, and the file is complete', async () => {
  const bytes = randomBytes(500_000)
  const stores = [store, await open(), await open()]
  const { uploadId } = await store.begin(inputOf(bytes))
  const states = await Promise.all(
    Array.from({ length: 12 }, (_, i) =>
      stores[i % 3]!.append('n1', uploadId, 0, bodyOf(bytes, 10_000 + i)).catch(failureOfThrown),
    ),
  )
  expect(states.some((state) => 'isComplete' in state && state.isComplete)).toBe(true)
  const keeps = await Promise.all(
    Array.from({ length: 12 }, (_, i) => stores[i % 3]!.keep('n1', uploadId, { kind: 'result' })),
  )
  expect(new Set(keeps.map(({ path }) => path)).size).toBe(1)
  expect(await read(keeps[0]!.path)).toEqual(bytes)
})

function failureOfThrown(error: unknown): { code: string } {
  if (error instanceof RolloutError) return error.failure
  throw error
}

test('upload() stores exactly the source bytes or reports the file as incomplete', async () => {
  const step = fc.record({
    server: fc.nat(2),
    offset: fc.oneof({ weight: 4, arbitrary: fc.constant('next' as const) }, { weight: 1, arbitrary: fc.nat(300) }),
    length: fc.nat(120),
    fault: fc.constantFrom('none', 'none', 'none', 'cut', 'wrong-bytes', 'wrong-digest', 'restart', 'too-long'),
    isAtOnce: fc.boolean(),
  })
  await fc.assert(
    fc.asyncProperty(
      fc.uint8Array({ minLength: 0, maxLength: 300 }),
      fc.array(step, { maxLength: 25 }),
      fc.uuid(),
      async (bytes, steps, sessionId) => {
        const servers = [await open(), await open(), await open()]
        const input = inputOf(bytes, { sessionId })
        const { uploadId } = await servers[0]!.begin(input)
        let under: Promise<unknown>[] = []
        for (const { server, offset, length, fault, isAtOnce } of steps) {
          if (fault === 'restart') servers[server] = await open()
          const known = await servers[server]!.find('n1', uploadId)
          const at = offset === 'next' ? known!.offset : offset
          const part = bytes.slice(at, at + length)
          const sent =
            fault === 'wrong-bytes'
              ? part.map((byte) => byte ^ 1)
              : fault === 'too-long'
                ? Buffer.concat([part, Buffer.alloc(301)])
                : part
          const body = fault === 'cut' ? cutBody(sent, Math.floor(sent.length / 2)) : bodyOf(sent, 7)
          const digest = fault === 'wrong-digest' ? digestOf(Buffer.from('other')) : undefined
          const work = servers[server]!.append('n1', uploadId, at, body, digest).catch(failureOfThrown)
          if (isAtOnce) under.push(work)
          else {
            await Promise.all([...under, work])
            under = []
          }
        }
        await Promise.all(under)
        for (const one of servers) {
          const { isComplete, offset } = (await one.find('n1', uploadId))!
          if (isComplete) expect(offset).toBe(bytes.length)
        }
        const isComplete = (await servers[1]!.find('n1', uploadId))!.isComplete
        // A correct sender can complete the upload from any state.
        let state = (await servers[2]!.find('n1', uploadId))!
        for (let tries = 0; !state.isComplete && tries < 4; tries++) {
          const rest = bodyOf(bytes.subarray(state.offset), 11)
          const after = await servers[tries % 3]!.append('n1', uploadId, state.offset, rest).catch(failureOfThrown)
          state = 'isComplete' in after ? after : (await servers[2]!.find('n1', uploadId))!
        }
        expect(state.isComplete || isComplete).toBe(true)
        const { path } = await servers[0]!.keep('n1', uploadId, { kind: 'result' })
        expect((await readFile(join(dir, path))).equals(bytes)).toBe(true)
      },
    ),
    { numRuns: runs(60) },
  )
})

describe('keep()', () => {
  test('returns the same reference again, also on another server', async () => {
    const uploadId = await upload(randomBytes(100))
    const first = await store.keep('n1', uploadId, { kind: 'result' })
    const other = await open()
    expect(await other.keep('n1', uploadId, { kind: 'result' })).toEqual(first)
    expect(await other.find('n1', uploadId)).toMatchObject({ isComplete: true, offset: 100 })
    expect(await other.begin(inputOf(await readFile(join(dir, first.path))))).toMatchObject({
      uploadId,
      isComplete: true,
    })
  })

  test('stores equal files of a session under each path', async () => {
    const bytes = Buffer.from('the same')
    const uploadId = await upload(bytes)
    for (const path of ['logs/stdout.txt', 'logs/stderr.txt', 'a', 'ümläut/日本 1.txt']) {
      const kept = await store.keep('n1', uploadId, { kind: 'artifact', path })
      expect(kept.path).toMatch(new RegExp(`^artifacts/[0-9a-f]{2}/ses_1\\.1/${path}$`))
      expect(await read(kept.path)).toEqual(bytes)
    }
  })

  test('never overwrites a file: other bytes of the same attempt get another path', async () => {
    const [one, two] = [Buffer.from('one'), Buffer.from('two')]
    const first = await store.keep('n1', await upload(one), { kind: 'result' })
    const second = await store.keep('n1', await upload(two), { kind: 'result' })
    expect(second.path).not.toBe(first.path)
    expect([await read(first.path), await read(second.path)]).toEqual([one, two])
    expect(await store.keep('n1', await upload(two), { kind: 'result' })).toEqual(second)
    const asFile = await store.keep('n1', await upload(one), { kind: 'artifact', path: 'x' })
    const below = await store.keep('n1', await upload(two), { kind: 'artifact', path: 'x/y' })
    const over = await store.keep('n1', await upload(two), { kind: 'artifact', path: 'x' })
    const long = await store.keep('n1', await upload(two), { kind: 'artifact', path: 'z'.repeat(300) })
    expect(await read(asFile.path)).toEqual(one)
    for (const { path } of [below, over, long]) expect(await read(path)).toEqual(two)
  })

  test('returns the stored file after the upload was swept and sent again', async () => {
    const bytes = randomBytes(100)
    const first = await store.keep('n1', await upload(bytes), { kind: 'result' })
    await rm(join(dir, 'kept'), { recursive: true })
    expect(await store.keep('n1', await upload(bytes), { kind: 'result' })).toEqual(first)
    // If the file was removed, it may be uploaded again.
    await rm(join(dir, first.path))
    expect(await store.begin(inputOf(bytes))).toMatchObject({ isComplete: false, offset: 0 })
    expect(await store.keep('n1', await upload(bytes), { kind: 'result' })).toEqual(first)
    expect(await read(first.path)).toEqual(bytes)
  })

  test('refuses an unknown or incomplete upload', async () => {
    expect(await failureOf(store.keep('n1', 'upl_none', { kind: 'result' }))).toMatchObject({
      code: 'request.not-found',
    })
    const { uploadId } = await store.begin(inputOf(randomBytes(10)))
    expect(await failureOf(store.keep('n1', uploadId, { kind: 'result' }))).toMatchObject({ code: 'request.conflict' })
  })
})

test('put() stores a result, the same one once', async () => {
  const first = await store.put('ses_9', 3, Buffer.from('result'))
  expect(first.path).toMatch(/^results\/[0-9a-f]{2}\/ses_9\.3\.json\.zst$/)
  expect(await store.put('ses_9', 3, Buffer.from('result'))).toEqual(first)
  const other = await store.put('ses_9', 3, Buffer.from('another'))
  expect((await read(first.path)).toString()).toBe('result')
  expect((await read(other.path)).toString()).toBe('another')
  expect(await filesBelow('tmp')).toEqual([])
})

describe('open()', () => {
  test('returns ranges with their length', async () => {
    const bytes = randomBytes(1_000_000)
    const { path } = await store.put('ses_1', 1, bytes)
    for (const range of [
      { offset: 0 },
      { offset: 999_999 },
      { offset: 1_000_000 },
      { offset: 5, length: 700_000 },
      { offset: 10, length: 2_000_000 },
    ]) {
      const wanted = bytes.subarray(range.offset, range.length === undefined ? undefined : range.offset + range.length)
      expect((await read(path, range)).equals(wanted)).toBe(true)
      const { totalBytes, stream } = await store.open(path, range)
      expect(totalBytes).toBe(1_000_000)
      await stream.cancel()
    }
    expect(await failureOf(store.open(path, { offset: 1_000_001 }))).toMatchObject({ status: 416 })
  })

  test('buffers little of a file, and closes it when cancelled', async () => {
    const bytes = Buffer.alloc(64 * 2 ** 20, 'x')
    const { path } = await store.put('ses_1', 1, bytes)
    const countOpen = async () => (await readdir('/proc/self/fd')).length
    const before = await countOpen()
    const readers = await Promise.all(
      Array.from({ length: 20 }, async () => (await store.open(path)).stream.getReader()),
    )
    for (const reader of readers) expect((await reader.read()).value!.length).toBeLessThanOrEqual(2 ** 18)
    expect(await countOpen()).toBeGreaterThanOrEqual(before + 20)
    for (const reader of readers) await reader.cancel()
    expect(await countOpen()).toBeLessThan(before + 5)
  })

  test('opens only stored files', async () => {
    await writeFile(join(dir, 'secret'), 'secret')
    const { path } = await store.put('ses_1', 1, Buffer.from('x'))
    const shard = path.split('/')[1]!
    await symlink(join(dir, 'secret'), join(dir, 'results', shard, 'link'))
    await symlink(dir, join(dir, 'artifacts', 'aa'))
    const { uploadId } = await store.begin(inputOf(Buffer.from('x')))
    for (const [wanted, code] of [
      ['secret', 'request.malformed'],
      ['/etc/passwd', 'request.malformed'],
      ['results/../secret', 'request.malformed'],
      [`results/${shard}/../../secret`, 'request.malformed'],
      [`results/${shard}/./x`, 'request.malformed'],
      [`results/${shard}//x`, 'request.malformed'],
      [`results/${shard}/x\0`, 'request.malformed'],
      [`uploads/n1/${uploadId}/meta.json`, 'request.malformed'],
      [`results/${shard}`, 'request.malformed'],
      [`results/${shard}/link`, 'request.not-found'],
      ['artifacts/aa/secret', 'request.not-found'],
      [`results/${shard}/none.json.zst`, 'request.not-found'],
      [`${path}/x`, 'request.not-found'],
    ] as const) {
      expect([wanted, (await failureOf(store.open(wanted))).code]).toEqual([wanted, code])
    }
  })
})

test('ids and paths outside of the store are refused', async () => {
  const bytes = Buffer.from('x')
  for (const more of [
    { nodeId: '../n' },
    { nodeId: '' },
    { nodeId: 'a/b' },
    { sessionId: '..' },
    { sessionId: 'a\0' },
    { attempt: 0 },
    { attempt: 1.5 },
    { bytes: -1 },
    { digest: 'md5:0' },
    { digest: `sha256:${'0'.repeat(63)}/` },
  ]) {
    expect(await failureOf(store.begin(inputOf(bytes, more)))).toMatchObject({ code: 'request.malformed', status: 422 })
  }
  for (const [nodeId, uploadId] of [
    ['..', 'x'],
    ['n1', '../../secret'],
    ['n1', '.'],
    ['n1', ''],
  ] as const) {
    expect((await failureOf(store.find(nodeId, uploadId))).code).toBe('request.malformed')
    expect((await failureOf(store.append(nodeId, uploadId, 0, bodyOf(bytes)))).code).toBe('request.malformed')
  }
  const uploadId = await upload(bytes)
  for (const path of [
    '',
    '/etc/x',
    '../x',
    'a/../../x',
    'a/./b',
    'a//b',
    'a/',
    '.',
    '..',
    'a\\b',
    'a\0b',
    'a\nb',
    '\ud800',
  ]) {
    expect((await failureOf(store.keep('n1', uploadId, { kind: 'artifact', path }))).code).toBe('request.malformed')
  }
})

test('a planted symbolic link is not followed', async () => {
  const target = join(dir, 'target')
  await writeFile(target, 'untouched')
  const bytes = randomBytes(1000)
  const { uploadId } = await store.begin(inputOf(bytes))
  await store.append('n1', uploadId, 0, bodyOf(bytes.subarray(0, 100)))
  const folder = join(dir, 'uploads/n1', uploadId)
  const [segment] = (await readdir(folder)).filter((name) => name.endsWith('.part'))
  await rm(join(folder, segment!))
  await symlink(target, join(folder, segment!))
  await expect(store.append('n1', uploadId, 100, bodyOf(bytes.subarray(100)))).rejects.toMatchObject({
    code: 'store.unavailable',
  })
  expect(await readFile(target, 'utf8')).toBe('untouched')
})

describe('limits', () => {
  test('of upload size, and of unfinished uploads per node', async () => {
    store = await open({ maxUploadBytes: 100, maxOpenUploads: 3 })
    expect(await failureOf(store.begin(inputOf(randomBytes(101))))).toMatchObject({
      code: 'request.too-large',
      status: 413,
    })
    const three = [randomBytes(1), randomBytes(2), randomBytes(3)]
    for (const bytes of three) await store.begin(inputOf(bytes))
    expect(await failureOf(store.begin(inputOf(randomBytes(4))))).toMatchObject({
      code: 'request.over-quota',
      status: 429,
    })
    // The node may finish its open uploads, and other nodes are not limited.
    await store.keep('n1', await upload(three[0]!), { kind: 'result' })
    await store.begin(inputOf(randomBytes(4), { nodeId: 'n2' }))
    await (await open({ maxOpenUploads: 3 })).begin(inputOf(randomBytes(5)))
  })

  test('of free disk space apply to begin, append and put', async () => {
    const bytes = randomBytes(1000)
    const { uploadId } = await store.begin(inputOf(bytes))
    await store.append('n1', uploadId, 0, bodyOf(bytes.subarray(0, 500)))
    const full = await open({ minFreeBytes: 2 ** 50 })
    const failures = await Promise.all([
      failureOf(full.begin(inputOf(randomBytes(1)))),
      failureOf(full.append('n1', uploadId, 500, bodyOf(bytes.subarray(500)))),
      failureOf(full.put('ses_1', 1, bytes)),
    ])
    for (const failure of failures) {
      expect(failure).toMatchObject({
        code: 'store.unavailable',
        status: 503,
        message: expect.stringMatching(/MiB free/),
      })
    }
    // Existing files can still be read, found and kept.
    expect(await full.find('n1', uploadId)).toMatchObject({ offset: 500 })
    expect(await store.append('n1', uploadId, 500, bodyOf(bytes.subarray(500)))).toMatchObject({ isComplete: true })
    expect(await read((await full.keep('n1', uploadId, { kind: 'result' })).path)).toEqual(bytes)
  })

  test('of permission are reported as such', async (context) => {
    if (process.getuid?.() === 0) context.skip('to root nothing is forbidden')
    await chmod(join(dir, 'tmp'), 0o500)
    expect(await failureOf(store.put('ses_1', 1, Buffer.from('x')))).toMatchObject({
      code: 'store.unavailable',
      status: 503,
    })
    await chmod(join(dir, 'tmp'), 0o700)
  })
})

describe('sweep()', () => {
  const HOUR = 3_600_000
  async function makeOld(path: string): Promise<void> {
    const old = new Date(Date.now() - 100 * HOUR)
    await utimes(path, old, old)
  }

  /** The ctime of a file cannot be set, so the clock of the store is set to the future. */
  function inHours(hours: number): Promise<FileStore> {
    return open({ clock: { ...systemClock, now: () => Date.now() + hours * HOUR } })
  }

  test('removes only uploads without progress', async () => {
    const bytes = randomBytes(1000)
    const { uploadId } = await store.begin(inputOf(bytes))
    await store.append('n1', uploadId, 0, bodyOf(bytes.subarray(0, 500)))
    await upload(randomBytes(20), { nodeId: 'n2' })
    const kept = await store.keep('n3', await upload(randomBytes(30), { nodeId: 'n3' }), { kind: 'result' })
    await mkdir(join(dir, 'tmp', 'upload-left'))
    await writeFile(join(dir, 'tmp', 'file-left'), 'half')
    expect(await store.sweep(HOUR)).toBe(0)
    expect(await (await inHours(2)).sweep(HOUR)).toBe(2)
    expect(await store.find('n1', uploadId)).toBeUndefined()
    expect(await readdir(join(dir, 'uploads'))).toEqual([])
    expect(await readdir(join(dir, 'kept'))).toEqual([])
    expect(await readdir(join(dir, 'tmp'))).toEqual([])
    expect(await read(kept.path)).toHaveLength(30)
    // A sender in the middle of an upload gets an error, and begins again.
    expect((await failureOf(store.append('n1', uploadId, 500, bodyOf(bytes.subarray(500))))).code).toBe(
      'request.not-found',
    )
    await upload(bytes)
  })

  test('keeps an old upload with recent progress', async () => {
    const { uploadId } = await store.begin(inputOf(randomBytes(1000)))
    await makeOld(join(dir, 'uploads/n1', uploadId, 'meta.json'))
    await store.append('n1', uploadId, 0, bodyOf(randomBytes(10)))
    expect(await store.sweep(HOUR)).toBe(0)
  })

  test('sweepKept() removes old files without a row', async () => {
    const known = await store.put('ses_1', 1, Buffer.from('known'))
    const unknown = await store.put('ses_2', 1, Buffer.from('unknown'))
    const log = await store.keep('n1', await upload(Buffer.from('log')), { kind: 'artifact', path: 'a/b/c.log' })
    const isKnown = async (paths: readonly string[]) => new Set(paths.filter((path) => path === known.path))
    expect(await store.sweepKept(HOUR, isKnown)).toBe(0)
    const asked: string[] = []
    const later = await inHours(2)
    const swept = await later.sweepKept(HOUR, async (paths) => {
      asked.push(...paths)
      return isKnown(paths)
    })
    expect(swept).toBe(2)
    expect(asked.sort()).toEqual([known.path, unknown.path, log.path].sort())
    expect((await read(known.path)).toString()).toBe('known')
    expect((await failureOf(store.open(unknown.path))).code).toBe('request.not-found')
  })
})
