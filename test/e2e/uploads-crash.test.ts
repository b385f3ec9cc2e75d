import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { uploadRoutes } from '../../src/api/routes/upload-routes.ts'
import { createClientOf } from '../../src/client/client.ts'
import { uploadFile, type UploadSource } from '../../src/client/upload.ts'
import { systemClock } from '../../src/lib/async/clock.ts'
import { openFileStore } from '../../src/store/files.ts'

const program = join(import.meta.dirname, '../support/file-store-process.ts')
const keeper = join(import.meta.dirname, '../support/file-keeper-process.ts')
let dir: string
const children = new Set<ChildProcess>()
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-uploads-'))
})
afterEach(async () => {
  await Promise.all([...children].map(kill))
  await rm(dir, { recursive: true, force: true })
})

async function startServer(): Promise<{ url: string; child: ChildProcess }> {
  const child = spawn(process.execPath, [program, dir], { stdio: ['ignore', 'pipe', 'inherit'] })
  children.add(child)
  const [url] = (await once(createInterface({ input: child.stdout }), 'line')) as [string]
  return { url, child }
}

async function kill(child: ChildProcess): Promise<void> {
  children.delete(child)
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

function clientOf(url: () => string) {
  // Each attempt goes to the current server.
  return createClientOf(uploadRoutes, {
    baseUrl: 'http://server',
    fetch: (request) => fetch(new Request(request.url.replace('http://server', url()), request)),
    attempts: 2000,
    baseDelayMs: 5,
    maxDelayMs: 50,
  })
}

function sourceOf(bytes: Buffer, more: Partial<UploadSource> = {}): UploadSource {
  return {
    nodeId: 'n1',
    sessionId: 'ses_1',
    attempt: 1,
    bytes: bytes.length,
    digest: `sha256:${createHash('sha256').update(bytes).digest('hex')}`,
    read: async (offset, length) => new Uint8Array(bytes.subarray(offset, offset + length)),
    partBytes: 256 * 1024,
    ...more,
  }
}

/** Expects that a newly opened store contains exactly the bytes. */
async function expectKept(uploadId: string, bytes: Buffer): Promise<void> {
  const store = await openFileStore({ dir, clock: systemClock, minFreeBytes: 0 })
  const { path } = await store.keep('n1', uploadId, { kind: 'result' })
  expect((await readFile(join(dir, path))).equals(bytes)).toBe(true)
}

test('after kill -9 at any moment the upload resumes with at most one part lost and stores exactly the source bytes', async () => {
  const bytes = randomBytes(12 * 2 ** 20)
  let current = await startServer()
  const client = clientOf(() => current.url)
  let isDone = false
  let acknowledged = 0
  const watched: typeof client = {
    ...client,
    putPart: async (input) => {
      const upload = await client.putPart(input)
      acknowledged = Math.max(acknowledged, upload.offset)
      return upload
    },
  }
  const done = uploadFile(watched, sourceOf(bytes)).finally(() => void (isDone = true))
  const offsets: number[] = []
  for (let kills = 0; !isDone && kills < 12; kills++) {
    await new Promise((later) => setTimeout(later, 30 + Math.random() * 200))
    await kill(current.child)
    // All parts that were acknowledged as stored survive the kill.
    const before = acknowledged
    current = await startServer()
    const { uploadId, offset } = await (
      await openFileStore({ dir, clock: systemClock, minFreeBytes: 0 })
    ).begin(sourceOf(bytes))
    offsets.push(offset)
    expect(offset, uploadId).toBeGreaterThanOrEqual(before)
  }
  const upload = await done
  expect(upload).toMatchObject({ is_complete: true, offset: bytes.length })
  expect(offsets.length).toBeGreaterThan(1)
  await expectKept(upload.upload_id, bytes)
})

test('two clients that upload the same file through two servers in turn store one correct file', async () => {
  const bytes = randomBytes(6 * 2 ** 20)
  const servers = [await startServer(), await startServer()]
  let turn = 0
  const client = clientOf(() => servers[turn++ % 2]!.url)
  const source = sourceOf(bytes)
  const uploads = await Promise.all([uploadFile(client, source), uploadFile(client, { ...source, partBytes: 100_000 })])
  for (const upload of uploads) expect(upload).toMatchObject({ is_complete: true, offset: bytes.length })
  await expectKept(uploads[0].upload_id, bytes)
})

test('a file that changes during the upload is never complete, and the client gets an error', async () => {
  const bytes = randomBytes(3 * 2 ** 20)
  const { url } = await startServer()
  const changing = sourceOf(bytes, { read: async (_, length) => new Uint8Array(randomBytes(length)) })
  await expect(
    uploadFile(
      clientOf(() => url),
      changing,
    ),
  ).rejects.toThrow(/the file may have changed/)
  const upload = await uploadFile(
    clientOf(() => url),
    sourceOf(bytes),
  )
  await expectKept(upload.upload_id, bytes)
})

test('after kill -9 at any moment every kept file is complete, and the remaining files can be stored again', async () => {
  let acknowledged: string[] = []
  for (const count of [1, 4, 9, 25, 26, 40, 40, 80]) {
    const child = spawn(process.execPath, [keeper, dir], { stdio: ['ignore', 'pipe', 'inherit'] })
    children.add(child)
    acknowledged = []
    for await (const line of createInterface(child.stdout)) {
      acknowledged.push(line)
      if (acknowledged.length >= count && children.has(child)) {
        await new Promise((later) => setTimeout(later, Math.random() * 5))
        await kill(child)
      }
    }
    // Each process starts with the first file, so this includes files whose storing an earlier kill interrupted.
    expect(acknowledged.length).toBeGreaterThanOrEqual(count)
    for (const [i, line] of acknowledged.entries()) {
      const [, path = ''] = line.split(' ')
      const bytes = createHash('sha512').update(String(i)).digest()
      expect([line, (await readFile(join(dir, path))).equals(bytes)]).toEqual([`${i} ${path}`, true])
    }
  }
  const store = await openFileStore({
    dir,
    clock: { ...systemClock, now: () => Date.now() + 3_600_000 },
    minFreeBytes: 0,
  })
  await store.sweep(1000)
  expect(await readdir(join(dir, 'uploads'))).toEqual([])
  expect(await readdir(join(dir, 'tmp'))).toEqual([])
})

test('an upload to a full disk fails with store.unavailable and resumes at its offset when space is free', async (context) => {
  const mounted = spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=16m', 'tmpfs', dir], { encoding: 'utf8' })
  if (mounted.status !== 0) context.skip(`no disk can be mounted here: ${mounted.stderr.trim()}`)
  try {
    const filler = join(dir, 'filler')
    const store = await openFileStore({ dir, clock: systemClock, minFreeBytes: 0 })
    const bytes = randomBytes(4 * 2 ** 20)
    const { uploadId } = await store.begin(sourceOf(bytes))
    await writeFile(filler, Buffer.alloc(13.5 * 2 ** 20))
    const append = (at: number) =>
      store.append('n1', uploadId, at, new Blob([bytes.subarray(at, at + 2 ** 20)]).stream())
    let offset = 0
    await expect(
      (async () => {
        for (;;) ({ offset } = await append(offset))
      })(),
    ).rejects.toMatchObject({
      failure: { code: 'store.unavailable', status: 503, message: expect.stringMatching(/the disk is full|MiB free/) },
    })
    expect(offset).toBeGreaterThan(0)
    expect(await store.find('n1', uploadId)).toMatchObject({ offset, isComplete: false })
    await expect(append(offset)).rejects.toMatchObject({ code: 'store.unavailable' })
    await rm(filler)
    await expect
      .poll(async () => (await append(offset).catch(() => undefined))?.offset, { timeout: 5000 })
      .toBe(offset + 2 ** 20)
    while (!(await store.find('n1', uploadId))!.isComplete)
      ({ offset } = await append((await store.find('n1', uploadId))!.offset))
    await expectKept(uploadId, bytes)
  } finally {
    spawnSync('umount', [dir])
  }
})
