import { mkdir, readFile, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { zstdCompressSync } from 'node:zlib'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { RolloutError } from '../../model/failure.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { Turn } from '../../model/turn.ts'
import {
  anySteps,
  append,
  appendAll,
  comparable,
  inScratch,
  type LogStep,
  OPENING,
  toSteps,
  turnsOf,
} from '../store.contract.ts'
import { BufferPool, ByteWriter } from './byte-writer.ts'
import { createCallLogReader } from './reader.ts'
import { type Column, type LogRecord, MAGIC, RecordKind, SCHEMA_VERSION, writeRecord } from './record.ts'
import { createCallLogStore } from './store.ts'
import { runs } from '../../../test/support/runs.ts'

/** Two turns that share a prompt and a request, one side call that fails, one call without an end. */
const plan = {
  seed: 1,
  parent: 9,
  kept: 1,
  added: 100,
  sampled: [3],
  text: 'жé🎉',
  duration: 0,
  forced: { n: 1 },
} as const
const smallSession = toSteps([
  { ...plan, sampled: [3], outcome: 'answered', delivery: 'delivered' },
  { ...plan, parent: 0, added: 5, sampled: [2, 0], outcome: 'partial', delivery: 'undelivered' },
  { ...plan, added: 0, sampled: [], outcome: 'failed', delivery: 'none' },
  { ...plan, added: 1, sampled: [], outcome: 'unfinished', delivery: 'none' },
])

test('a file cut at any byte yields every complete record before the cut, and no part of another', async () => {
  await inScratch(async (dir) => {
    const { path, ends } = await record(dir, smallSession)
    const size = ends.at(-1) ?? 0
    const reader = createCallLogReader({ dir })
    for (const length of cutsOf(size, ends)) {
      await truncate(path, length)
      expectCutAt(length, await reader.load(OPENING.id), smallSession, ends)
    }
  })
})

/** Returns all places around the ends of records and a random part of the others, the last first. */
function cutsOf(size: number, ends: readonly number[]): number[] {
  const around = new Set([0, ...ends].flatMap((end) => [end - 1, end, end + 1]))
  const share = runs(1) / 5
  return Array.from({ length: size + 1 }, (_, i) => size - i).filter(
    (length) => around.has(length) || Math.random() < share,
  )
}

test('a file of any session cut at any byte does so too', async () => {
  await fc.assert(
    fc.asyncProperty(
      anySteps,
      fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 5 }),
      async (steps, cuts) => {
        await inScratch(async (dir) => {
          const { path, ends } = await record(dir, steps)
          const reader = createCallLogReader({ dir })
          for (const cut of cuts.sort((a, b) => b - a)) {
            const length = Math.floor(cut * (ends.at(-1) ?? 0))
            await truncate(path, length)
            expectCutAt(length, await reader.load(OPENING.id), steps, ends)
          }
        })
      },
    ),
    { numRuns: runs(15) },
  )
})

test('a file cut at any byte can be continued, and is never complete again', async () => {
  await inScratch(async (dir) => {
    const { path, ends } = await record(dir, smallSession)
    const bytes = await readFile(path)
    const random = fc.sample(fc.nat(bytes.length - 1), { numRuns: 60, seed: 7 })
    for (const length of [...random, ...ends.slice(0, -1)]) {
      await writeFile(path, bytes.subarray(0, length))
      const log = await createCallLogStore({ dir }).open({ ...OPENING, createdAt: 5 })
      const later: LogStep[] = [
        { step: 'intent', intent: { ...intentOfFirst(smallSession), id: 'later', index: 9 } },
        { step: 'end', end: { turnId: 'later', endedAt: 3, forced: {} } },
      ]
      await appendAll(log, later)
      await log.close()
      expect(log.broken).toBeUndefined()
      const session = await createCallLogReader({ dir }).load(OPENING.id)
      const kept = smallSession.filter((_, index) => (ends[index + 1] ?? Infinity) <= length)
      expect(comparable(session.turns)).toEqual(comparable(turnsOf([...kept, ...later])))
      expect(session.complete).toBe(false)
      expect(session.createdAt).toBe(length < (ends[0] ?? 0) ? 5 : OPENING.createdAt)
    }
  })
}, 60_000)

test.each([
  ['as written', Infinity],
  ['packed', 0],
])('a flipped bit never yields a wrong value or a complete session (%s)', async (_, packAboveBytes) => {
  await inScratch(async (dir) => {
    const { path } = await record(dir, smallSession, packAboveBytes)
    const bytes = await readFile(path)
    const reader = createCallLogReader({ dir })
    await fc.assert(
      fc.asyncProperty(fc.nat(bytes.length - 1), fc.nat(7), async (at, bit) => {
        const flipped = Buffer.from(bytes)
        flipped[at] = (flipped[at] ?? 0) ^ (1 << bit)
        await writeFile(path, flipped)
        const session = await reader.load(OPENING.id).catch((error: unknown) => error)
        if (session instanceof RolloutError) expect(session.code).toBe('store.corrupt')
        else expectNothingWrong(session as SessionRecord)
        const salvaged = await reader.load(OPENING.id, { salvage: true })
        expectNothingWrong(salvaged)
        const reasons = salvaged.incompleteReasons.join()
        if (session instanceof RolloutError) expect(reasons).toMatch(/damaged|missing|was skipped/)
      }),
      { numRuns: runs(250) },
    )
  })
})

test('any number of changed bytes never yields a wrong value', async () => {
  await inScratch(async (dir) => {
    const { path } = await record(dir, smallSession)
    const bytes = await readFile(path)
    const reader = createCallLogReader({ dir })
    const anyChange = fc.tuple(fc.nat(bytes.length - 1), fc.uint8Array({ minLength: 1, maxLength: 200 }))
    await fc.assert(
      fc.asyncProperty(fc.array(anyChange, { minLength: 1, maxLength: 4 }), async (changes) => {
        const changed = Buffer.from(bytes)
        for (const [at, values] of changes) changed.set(values.subarray(0, changed.length - at), at)
        fc.pre(!changed.equals(bytes))
        await writeFile(path, changed)
        expectNothingWrong(await reader.load(OPENING.id, { salvage: true }))
      }),
      { numRuns: runs(150) },
    )
  })
})

test('damage before the end is an error with the byte offset; salvage returns the records that do not depend on it', async () => {
  await inScratch(async (dir) => {
    const { path, ends } = await record(dir, smallSession)
    const bytes = await readFile(path)
    const firstEnd = smallSession.findIndex((step) => step.step === 'end')
    const damagedFrom = ends[firstEnd] ?? 0
    bytes[(ends[firstEnd + 1] ?? 0) - 2] = 0x55
    await writeFile(path, bytes)
    const reader = createCallLogReader({ dir })
    const message = expect.stringContaining(`byte ${damagedFrom}`)
    await expect(reader.load(OPENING.id)).rejects.toMatchObject({ failure: { code: 'store.corrupt', message } })
    const salvaged = await reader.load(OPENING.id, { salvage: true })
    // The first turn has lost its end record, which the prompt of the second refers to.
    expect(salvaged.turns.map((turn) => turn.endedAt !== undefined)).toEqual([false, false, true, false])
    expect(salvaged.incompleteReasons).toEqual(
      expect.arrayContaining([
        expect.stringContaining(`at offset ${damagedFrom} were skipped`),
        expect.stringContaining('turn-1 refers to record'),
        'turn turn-0 has a start but no end',
      ]),
    )
    expect(await createCallLogStore({ dir }).open(OPENING)).toMatchObject({ broken: { code: 'store.corrupt' } })
    expect(await readFile(path)).toEqual(bytes)
  })
})

test('a missing, duplicate or misplaced record is an error, and a reason with salvage', async () => {
  await inScratch(async (dir) => {
    const { path, ends } = await record(dir, smallSession)
    const bytes = await readFile(path)
    const frames = ends.map((end, index) => bytes.subarray(ends[index - 1] ?? 0, end))
    const reader = createCallLogReader({ dir })
    for (let at = 0; at < frames.length - 1; at += 1) {
      const [frame, next] = [frames[at] as Buffer, frames[at + 1] as Buffer]
      for (const middle of [[next], [frame, frame, next], [next, frame]]) {
        await writeFile(path, Buffer.concat([...frames.slice(0, at), ...middle, ...frames.slice(at + 2)]))
        await expect(reader.load(OPENING.id)).rejects.toMatchObject({ failure: { code: 'store.corrupt' } })
        expectNothingWrong(await reader.load(OPENING.id, { salvage: true }))
        expect((await createCallLogStore({ dir }).open(OPENING)).broken).toMatchObject({ code: 'store.corrupt' })
      }
    }
  })
})

test('a long torn tail is removed when the log is continued', async () => {
  await inScratch(async (dir) => {
    const { path } = await record(dir, smallSession)
    const bytes = await readFile(path)
    await writeFile(path, Buffer.concat([bytes, bytes.subarray(0, 20), Buffer.alloc(100_000, 7)]))
    await (await createCallLogStore({ dir, packAboveBytes: Infinity }).open(OPENING)).close()
    const session = await createCallLogReader({ dir }).load(OPENING.id)
    expect(session.incompleteReasons).toEqual([
      'turn turn-3 has a start but no end',
      expect.stringContaining('an earlier writer stopped without closing the log'),
    ])
  })
})

test('records with a valid checksum and an invalid content are damage too', async () => {
  await inScratch(async (dir) => {
    const open: LogRecord = { kind: RecordKind.open, header: { ...OPENING, schemaVersion: SCHEMA_VERSION } }
    const close = (turns: number, records: number): LogRecord => ({
      kind: RecordKind.close,
      header: { closedAt: 1, complete: true, reasons: [], turns, records },
    })
    const pack = (records: number, bytes: number): LogRecord => ({ kind: RecordKind.pack, header: { records, bytes } })
    const inner = framesOf([[close(0, 1), 1]])
    const whole = zstdCompressSync(inner)
    const damaged = { failure: { code: 'store.corrupt' } }
    const load = async (...records: [LogRecord, number, Column?][]): Promise<SessionRecord> => {
      await writeFile(join(dir, OPENING.id, 'calls.plog'), framesOf([[open, 0], ...records]))
      return createCallLogReader({ dir }).load(OPENING.id)
    }
    await mkdir(join(dir, OPENING.id))
    await expect(load([pack(1, inner.length), 1, whole])).resolves.toMatchObject({ complete: true })
    await expect(load([pack(2, inner.length), 1, whole])).rejects.toMatchObject(damaged)
    await expect(load([pack(1, inner.length - 1), 1, whole])).rejects.toMatchObject(damaged)
    await expect(load([pack(1, 100), 1, Buffer.from('not zstd')])).rejects.toMatchObject(damaged)
    await expect(load([pack(1, 100), 1])).rejects.toMatchObject(damaged)
    const counted = {
      complete: false,
      incompleteReasons: [expect.stringContaining('2 turns in 1 records, but 0 in 1')],
    }
    await expect(load([close(2, 1), 1])).resolves.toMatchObject(counted)
    const bare = { ...close(0, 1), header: null } as unknown as LogRecord
    await expect(load([bare, 1])).rejects.toMatchObject(damaged)
  })
})

test('a request that looks like a record is not read as one when the file is cut inside it', async () => {
  await inScratch(async (dir) => {
    const { path, ends } = await record(dir, smallSession)
    const fake = (await readFile(path)).subarray(ends[0], ends[1]).toString('utf8')
    expect(Buffer.from(fake).includes(MAGIC)).toBe(false)
    const log = await createCallLogStore({ dir, packAboveBytes: Infinity }).open({ ...OPENING, id: 'hostile' })
    log.appendIntent({ ...intentOfFirst(smallSession), request: fake.repeat(3) })
    await log.flush()
    await log.close()
    const hostile = join(dir, 'hostile', 'calls.plog')
    const { length } = await readFile(hostile)
    for (let cut = length; cut > length - 400; cut -= 1) {
      await truncate(hostile, cut)
      expect((await createCallLogReader({ dir }).load('hostile')).turns.length).toBeLessThanOrEqual(1)
    }
  })
})

/** Writes a session record by record; `ends[0]` is where the opening ends, `ends[i + 1]` where step i does. */
async function record(
  dir: string,
  steps: readonly LogStep[],
  packAboveBytes = Infinity,
): Promise<{ path: string; ends: number[] }> {
  const log = await createCallLogStore({ dir, packAboveBytes }).open(OPENING)
  const path = join(dir, OPENING.id, 'calls.plog')
  const ends = [(await readFile(path)).length]
  for (const step of steps) {
    void append(log, step)
    await log.flush()
    ends.push((await readFile(path)).length)
  }
  await log.close()
  ends.push((await readFile(path)).length)
  return { path, ends }
}

function expectCutAt(length: number, session: SessionRecord, steps: readonly LogStep[], ends: readonly number[]): void {
  const whole = steps.filter((_, index) => (ends[index + 1] ?? Infinity) <= length)
  expect(comparable(session.turns)).toEqual(comparable(turnsOf(whole)))
  const dropped = length - Math.max(0, ...ends.filter((end) => end <= length))
  if (dropped > 0) expect(session.incompleteReasons).toContain(`a torn tail of ${dropped} bytes was dropped`)
  if (length < (ends.at(-1) ?? 0)) expect(session).toMatchObject({ complete: false })
}

/** Every turn is a recorded one, at most without its end or delivery, and with a reason for it. */
function expectNothingWrong(session: SessionRecord): void {
  expect(session.complete).toBe(false)
  const originals = new Map(turnsOf(smallSession).map((turn) => [turn.id, turn]))
  for (const turn of session.turns) {
    const original = originals.get(turn.id) as Turn
    const { endedAt: _endedAt, firstTokenAt: _first, sampling: _sampling, ...begun } = original
    const { response: _response, failure: _failure, ...started } = begun
    const expected = turn.endedAt === undefined ? { ...started, forced: {} } : original
    expect(comparable([turn])).toEqual(comparable([{ ...expected, delivery: turn.delivery }]))
    expect([original.delivery, 'unknown']).toContain(turn.delivery)
  }
}

function framesOf(records: readonly [LogRecord, number, Column?][]): Buffer {
  const writer = new ByteWriter(new BufferPool())
  for (const [entry, sequence, column] of records) {
    writeRecord(writer, entry, sequence, column === undefined ? [] : [column])
  }
  return Buffer.from(writer.bytes)
}

function intentOfFirst(steps: readonly LogStep[]): Extract<LogStep, { step: 'intent' }>['intent'] {
  const [first] = steps
  if (first?.step !== 'intent') throw new Error('The first step is an intent')
  return first.intent
}
