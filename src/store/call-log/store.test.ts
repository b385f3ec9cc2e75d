import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import type { TurnResponse } from '../../model/turn.ts'
import type { TurnEnd, TurnIntent } from '../store.ts'
import { appendAll, createRandom, describeSessionStore, inScratch, intentOf, OPENING } from '../store.contract.ts'
import { type FileIo, nodeFileIo } from './append-file.ts'
import { ByteWriter, BufferPool } from './byte-writer.ts'
import { createCallLogReader } from './reader.ts'
import { FRAME_BYTES, RecordKind, writeRecord } from './record.ts'
import { createCallLogStore } from './store.ts'

describeSessionStore('call log', (dir) => ({
  store: createCallLogStore({ dir }),
  reader: createCallLogReader({ dir }),
}))
describeSessionStore('call log, packed', (dir) => ({
  store: createCallLogStore({ dir, packAboveBytes: 0 }),
  reader: createCallLogReader({ dir }),
}))

test('a log is readable only by its user', async () => {
  await inScratch(async (scratch) => {
    const dir = join(scratch, 'new', 'logs')
    await using store = createCallLogStore({ dir, packAboveBytes: 0 })
    const log = await store.open(OPENING)
    log.appendIntent(intentOf('a', 0, 'x'))
    await log.close()
    expect((await stat(join(dir, OPENING.id))).mode & 0o777).toBe(0o700)
    expect((await stat(join(dir, OPENING.id, 'calls.plog'))).mode & 0o777).toBe(0o600)
    expect(await readdir(join(dir, OPENING.id))).toEqual(['calls.plog'])
  })
})

test('an invalid id creates no file', async () => {
  await inScratch(async (dir) => {
    await mkdir(join(dir, 'evil'))
    await mkdir(join(dir, 'logs'))
    await using store = createCallLogStore({ dir: join(dir, 'logs') })
    for (const id of ['../evil', '..', '', '.', 'a/b', 'a\0b', 'x'.repeat(200)]) {
      const log = await store.open({ ...OPENING, id })
      log.appendIntent(intentOf('a', 0, 'x'))
      await log.appendEnd({ turnId: 'a', endedAt: 1, forced: {} })
      await log.close()
      expect(log.broken).toMatchObject({ code: 'store.unavailable' })
    }
    expect(await readdir(dir, { recursive: true })).toEqual(['evil', 'logs'])
  })
})

test('a second writer is refused, in this process and in any other, until the first has closed', async () => {
  await inScratch(async (dir) => {
    await using store = createCallLogStore({ dir })
    const first = await store.open(OPENING)
    const second = await createCallLogStore({ dir }).open(OPENING)
    expect(second.broken).toMatchObject({
      code: 'store.unavailable',
      message: expect.stringContaining(`${process.pid}`),
    })
    await second.close()
    first.appendIntent(intentOf('a', 0, 'x'))
    await first.appendEnd({ turnId: 'a', endedAt: 1, forced: {} })
    await first.close()
    expect(await createCallLogReader({ dir }).load(OPENING.id)).toMatchObject({ complete: true })
    const third = await store.open(OPENING)
    expect(third.broken).toBeUndefined()
  })
})

test('a refused writer marks its records as missing', async () => {
  await inScratch(async (dir) => {
    await using store = createCallLogStore({ dir })
    const first = await store.open(OPENING)
    const second = await store.open(OPENING)
    second.appendIntent(intentOf('a', 0, 'x'))
    await second.close()
    await first.close()
    const session = await createCallLogReader({ dir }).load(OPENING.id)
    expect(session.incompleteReasons).toEqual([expect.stringContaining('is being recorded by process')])
  })
})

test('a log that was closed can be continued and is complete again', async () => {
  await inScratch(async (dir) => {
    for (const [round, packAboveBytes] of [0, Infinity, 0, 0].entries()) {
      const log = await createCallLogStore({ dir, packAboveBytes }).open({ ...OPENING, createdAt: 10 + round })
      expect(log.turns).toBe(round)
      log.appendIntent(intentOf(`turn-${round}`, log.turns, 'the same request '.repeat(50)))
      await log.appendEnd(endOf(`turn-${round}`, 300))
      await log.close()
    }
    const session = await createCallLogReader({ dir }).load(OPENING.id)
    expect(session).toMatchObject({ complete: true, createdAt: 10 })
    expect(session.turns.map((turn) => turn.id)).toEqual(['turn-0', 'turn-1', 'turn-2', 'turn-3'])
  })
})

test('a turn without an end, an end without a start and a second end make a session incomplete', async () => {
  await inScratch(async (dir) => {
    const log = await createCallLogStore({ dir }).open(OPENING)
    for (const id of ['a', 'b']) log.appendIntent(intentOf(id, 0, 'x'))
    await log.appendEnd({ turnId: 'a', endedAt: 1, forced: {} })
    await log.appendEnd({ turnId: 'a', endedAt: 2, forced: {} })
    await log.appendEnd({ turnId: 'c', endedAt: 3, forced: {} })
    await log.close()
    const session = await createCallLogReader({ dir }).load(OPENING.id)
    expect(session.turns.map((turn) => turn.endedAt)).toEqual([1, undefined])
    expect(session.complete).toBe(false)
    expect(session.incompleteReasons).toEqual(
      expect.arrayContaining([
        'turn b has a start but no end',
        'turn c has an end without a start',
        'turn a ended twice; the first counts',
      ]),
    )
  })
})

test('an append after the close marks the log as incomplete, except a delivery', async () => {
  await inScratch(async (dir) => {
    const log = await createCallLogStore({ dir }).open(OPENING)
    log.appendIntent(intentOf('a', 0, 'x'))
    await log.appendEnd({ turnId: 'a', endedAt: 1, forced: {} })
    await log.close()
    log.appendDelivery('a', 'delivered')
    expect(log.broken).toBeUndefined()
    log.appendIntent(intentOf('late', 1, 'x'))
    expect(log.broken).toMatchObject({ code: 'internal.bug' })
    await expect
      .poll(async () => (await createCallLogReader({ dir }).load(OPENING.id)).incompleteReasons)
      .toEqual([expect.stringContaining('was closed before its last record was appended')])
  })
})

test('an invalid turn breaks the log and not the call', async () => {
  await inScratch(async (dir) => {
    const log = await createCallLogStore({ dir }).open(OPENING)
    log.appendIntent({} as TurnIntent)
    expect(log.broken).toMatchObject({ code: 'internal.bug' })
    await log.appendEnd({ turnId: 'a', endedAt: 1, forced: {}, response: {} as TurnResponse })
    await log.close()
    expect((await createCallLogReader({ dir }).load(OPENING.id)).complete).toBe(false)
  })
})

test('a value that cannot be encoded breaks the log and not the call', async () => {
  await inScratch(async (dir) => {
    const log = await createCallLogStore({ dir }).open(OPENING)
    log.appendIntent(intentOf('a', 0, 'x'))
    await log.appendEnd({ turnId: 'a', endedAt: 1, forced: { big: 1n } })
    expect(log.broken).toMatchObject({ code: 'internal.bug', message: expect.stringContaining('BigInt') })
    await log.close()
    const session = await createCallLogReader({ dir }).load(OPENING.id)
    expect(session.turns).toMatchObject([{ id: 'a' }])
    expect(session.incompleteReasons.join()).toContain('BigInt')
  })
})

test('a directory that is not writable yields a broken log whose calls continue', async () => {
  await inScratch(async (scratch) => {
    await writeFile(join(scratch, 'file'), '')
    await mkdir(join(scratch, 'taken', OPENING.id, 'calls.plog'), { recursive: true })
    for (const [dir, words] of [
      [join(scratch, 'file', 'logs'), /a part of the path is a file, not a directory \(ENOTDIR\)/],
      [join(scratch, 'taken'), /it is a directory \(EISDIR\)/],
      ['/proc/polar', /\(ENOENT\)/],
      ['/sys/polar', /\((EACCES|EPERM|EROFS)\)/],
    ] as const) {
      const log = await createCallLogStore({ dir }).open(OPENING)
      expect(log.broken).toMatchObject({ code: 'store.unavailable', message: expect.stringMatching(words) })
      expect(log.broken?.message).toContain(dir)
      log.appendIntent(intentOf('a', 0, 'x'))
      await log.appendEnd({ turnId: 'a', endedAt: 1, forced: {} })
      log.appendDelivery('a', 'delivered')
      await log.close()
    }
  })
})

test.each(['ENOSPC', 'EIO', 'EROFS', 'EACCES', 'EDQUOT'])(
  '%s in the middle of a record ends the log for good',
  async (code) => {
    await inScratch(async (dir) => {
      let healthy = true
      const io: FileIo = {
        ...nodeFileIo,
        // Writes half of the bytes and then fails; later writes would succeed again.
        async write(fd, bytes, position) {
          if (healthy) return nodeFileIo.write(fd, bytes, position)
          await nodeFileIo.write(fd, bytes.subarray(0, bytes.length / 2), position)
          healthy = true
          throw Object.assign(new Error(`${code}: made up`), { code })
        },
      }
      const log = await createCallLogStore({ dir, io }).open(OPENING)
      const turns = ['a', 'b', 'c']
      for (const [index, id] of turns.entries()) {
        if (id === 'b') healthy = false
        log.appendIntent(intentOf(id, index, 'x'))
        await log.appendEnd(endOf(id, 2000))
      }
      expect(log.broken).toMatchObject({ code: 'store.unavailable', message: expect.stringContaining(`(${code})`) })
      await log.close()
      const session = await createCallLogReader({ dir }).load(OPENING.id)
      expect(session.turns.map((turn) => [turn.id, turn.endedAt !== undefined])).toEqual([
        ['a', true],
        ['b', false],
      ])
      expect(session.complete).toBe(false)
      expect(session.incompleteReasons.join()).toMatch(new RegExp(`torn tail.*a write failed: .*${code}`))
    })
  },
)

test('a full disk breaks the log when it is opened', async () => {
  await inScratch(async (dir) => {
    const full = Object.assign(new Error('full'), { code: 'ENOSPC' })
    const log = await createCallLogStore({ dir, io: { ...nodeFileIo, write: () => Promise.reject(full) } }).open(
      OPENING,
    )
    expect(log.broken).toMatchObject({
      code: 'store.unavailable',
      message: expect.stringContaining('the disk is full'),
    })
    log.appendIntent(intentOf('a', log.turns, 'x'))
    expect(log.turns).toBe(1)
    await log.close()
    const session = await createCallLogReader({ dir }).load(OPENING.id)
    expect(session.incompleteReasons).toContain('the opening record is missing')
  })
})

test('a log of a newer schema is refused by reader and writer', async () => {
  await inScratch(async (dir) => {
    const writer = new ByteWriter(new BufferPool())
    writeRecord(writer, { kind: RecordKind.open, header: { ...OPENING, schemaVersion: 99 } }, 0)
    await mkdir(join(dir, OPENING.id))
    await writeFile(join(dir, OPENING.id, 'calls.plog'), writer.bytes)
    const failure = { code: 'store.newer-schema', message: expect.stringContaining('log schema 99') }
    await expect(createCallLogReader({ dir }).load(OPENING.id)).rejects.toMatchObject({ failure })
    expect((await createCallLogStore({ dir }).open(OPENING)).broken).toMatchObject(failure)
  })
})

test('a log in the directory of another session is refused', async () => {
  await inScratch(async (dir) => {
    await (await createCallLogStore({ dir }).open(OPENING)).close()
    await mkdir(join(dir, 'other'))
    await writeFile(join(dir, 'other', 'calls.plog'), await readFile(join(dir, OPENING.id, 'calls.plog')))
    const failure = { code: 'store.corrupt', message: expect.stringContaining(OPENING.id) }
    await expect(createCallLogReader({ dir }).load('other')).rejects.toMatchObject({ failure })
  })
})

test('a conversation is stored with only its new tokens and text, and read into shared memory', async () => {
  await inScratch(async (dir) => {
    const log = await createCallLogStore({ dir, packAboveBytes: Infinity }).open(OPENING)
    const random = createRandom(3)
    let prompt = Int32Array.from({ length: 10_000 }, () => Math.floor(random() * 1e5))
    let history = 'system prompt '.repeat(5000)
    for (let index = 0; index < 40; index += 1) {
      const end = endOf(`turn-${index}`, 200, prompt)
      log.appendIntent(intentOf(end.turnId, index, `${history}],"tools":"${'tool '.repeat(2000)}"}`))
      await log.appendEnd(end)
      prompt = Int32Array.from([...prompt, ...(end.response?.choices[0]?.ids ?? []), ...Array<number>(100).fill(index)])
      history += `, turn ${index}`
    }
    await log.close()
    const { size } = await stat(join(dir, OPENING.id, 'calls.plog'))
    const once = 4 * 10_000 + 80_000
    expect(size).toBeLessThan(once + 40 * (4 * 300 + 4 * 200 + 700))
    const { turns } = await createCallLogReader({ dir }).load(OPENING.id)
    const memory = turns.map((turn) => turn.response?.promptIds.buffer)
    expect(new Set(memory).size).toBe(1)
    expect(memory[0]?.byteLength).toBeLessThan(4 * prompt.length)
  })
})

test('a large log is packed when it is closed, with its opening record uncompressed', async () => {
  await inScratch(async (dir) => {
    const path = join(dir, OPENING.id, 'calls.plog')
    const log = await createCallLogStore({ dir }).open(OPENING)
    for (let index = 0; index < 30; index += 1) {
      log.appendIntent(intentOf(`turn-${index}`, index, `${index} is a request of its own `.repeat(2000)))
      await log.appendEnd(endOf(`turn-${index}`, 500))
    }
    const before = (await stat(path)).size
    await log.close()
    const packed = await readFile(path)
    expect(packed.length).toBeLessThan(before / 2)
    expect(packed[FRAME_BYTES]).toBe(RecordKind.open)
    const reader = createCallLogReader({ dir })
    expect(await reader.list()).toEqual([OPENING.id])
    const session = await reader.load(OPENING.id)
    expect(session).toMatchObject({ complete: true })
    expect(session.turns[29]?.request).toBe('29 is a request of its own '.repeat(2000))
  })
})

test('with durability "disk" a turn is synced before appendEnd() resolves', async () => {
  await inScratch(async (dir) => {
    const calls: string[] = []
    const io: FileIo = {
      write: (...rest) => nodeFileIo.write(...rest).finally(() => calls.push('written')),
      datasync: (fd) => nodeFileIo.datasync(fd).finally(() => calls.push('synced')),
    }
    const log = await createCallLogStore({ dir, durability: 'disk', io }).open(OPENING)
    log.appendIntent(intentOf('a', 0, 'x'))
    calls.length = 0
    await log.appendEnd(endOf('a', 10))
    expect(calls).toEqual(['written', 'synced'])
    await log.close()
    expect(await createCallLogReader({ dir }).load(OPENING.id)).toMatchObject({ complete: true })
  })
})

test('many logs of one store at the same time do not disturb each other', async () => {
  await inScratch(async (dir) => {
    await using store = createCallLogStore({ dir })
    const ids = Array.from({ length: 40 }, (_, index) => `session-${index}`)
    await Promise.all(
      ids.map(async (id) => {
        const log = await store.open({ ...OPENING, id })
        for (let index = 0; index < 20; index += 1) {
          await appendAll(log, [
            { step: 'intent', intent: intentOf(`${id}-${index}`, index, `${id} asks ${index}`.repeat(100)) },
            { step: 'end', end: endOf(`${id}-${index}`, 100) },
          ])
        }
        await log.close()
      }),
    )
    for (const id of ids) {
      const session = await createCallLogReader({ dir }).load(id)
      expect(session.complete).toBe(true)
      expect(session.turns.map((turn) => turn.request)).toEqual(
        Array.from({ length: 20 }, (_, index) => `${id} asks ${index}`.repeat(100)),
      )
    }
  })
})

function endOf(turnId: string, sampled: number, promptIds = new Int32Array(0)): TurnEnd {
  const random = createRandom(turnId.length + sampled)
  const ids = Int32Array.from({ length: sampled }, () => Math.floor(random() * 1e5))
  const message = { role: 'assistant' as const, content: [], toolCalls: [] }
  const choice = { index: 0, message, finishReason: 'stop' as const, ids, logprobs: new Float32Array(sampled) }
  const response = { id: `answer-${turnId}`, model: 'm', created: 1, promptIds, choices: [choice] }
  return { turnId, endedAt: 5, forced: {}, response: { ...response, grade: 'exact', gradeReasons: [] } }
}
