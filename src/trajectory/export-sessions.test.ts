import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { text } from 'node:stream/consumers'
import fc from 'fast-check'
import { expect, test } from 'vitest'
import { readParquet } from '../../test/support/read-parquet.ts'
import { RolloutError } from '../model/failure.ts'
import type { SessionRecord } from '../model/session.ts'
import type { Turn } from '../model/turn.ts'
import { builders } from './builders/index.ts'
import { exportSessions, type ExportOptions, type ExportReport, type ExportSource } from './export-sessions.ts'
import type { Exporter } from './exporters/exporter.ts'
import { exporters } from './exporters/index.ts'
import { CallFilter } from './select-calls.ts'
import { openFileSink } from './sinks/file-sink.ts'
import { openPartsSink } from './sinks/parts-sink.ts'
import type { ExportSink } from './sinks/sink.ts'
import { openStreamSink } from './sinks/stream-sink.ts'

const build: ExportOptions['build'] = {
  builder: builders.create({ kind: 'per_request' }, {}),
  filter: CallFilter.parse({ labels: ['main', 'side-call', 'subagent', 'compaction', 'retry', 'abandoned'] }),
  weighting: 'tokens',
  reader: {
    readRequest: () => undefined,
    readPrompt: () => ({ messages: [{ role: 'user', content: 'x' }], tools: null }),
  },
}

function sessionOf(number: number, turns: number): SessionRecord {
  const id = `ses_${number}`
  return {
    id,
    createdAt: number,
    origin: {},
    turns: Array.from({ length: turns }, (_, index) => turnOf(id, number, index)),
    complete: true,
    incompleteReasons: [],
  }
}

function turnOf(sessionId: string, number: number, index: number): Turn {
  const sampled = Int32Array.of(number, index, 7)
  return {
    id: `${sessionId}_${index}`,
    sessionId,
    index,
    dialect: 'openai-chat',
    startedAt: index,
    endedAt: index + 1,
    model: 'm',
    stream: false,
    request: '{}',
    headers: {},
    forced: {},
    delivery: 'delivered',
    response: {
      id: 'r',
      model: 'm',
      created: 1,
      promptIds: Int32Array.from({ length: 5 }, (_, i) => number * 100 + index * 10 + i),
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: [{ type: 'text', text: 'ü'.repeat(number * 3) }], toolCalls: [] },
          finishReason: 'stop',
          ids: sampled,
          logprobs: Float32Array.from(sampled, (value) => -value / 3),
        },
      ],
      grade: 'exact',
      gradeReasons: [],
    },
  }
}

function* sourcesOf(sessions: readonly SessionRecord[], dieAt = Infinity): Generator<ExportSource> {
  for (const [index, session] of sessions.entries()) {
    if (index === dieAt) throw new Killed()
    yield { id: session.id, load: async () => session }
  }
}

class Killed extends Error {}

const sessions = Array.from({ length: 12 }, (_, number) => sessionOf(number, (number * 5) % 4))

async function inScratch<T>(work: (dir: string) => Promise<T>): Promise<T> {
  const dir = await mkdtemp(join(tmpdir(), 'polar-export-'))
  try {
    return await work(dir)
  } finally {
    await rm(dir, { recursive: true, force: true })
  }
}

function create(kind: string): Exporter {
  return exporters.create(exporters.config.parse({ kind }), {})
}

interface Attempt {
  kind: string
  target: string
  resume?: boolean
  fingerprint?: string
  /** The process is killed before this session. */
  dieAt?: number
  /** Whether every session is committed, or none before the end. */
  isSlow?: boolean
}

function openSink(attempt: Attempt): Promise<ExportSink | undefined> {
  const { kind, target, resume = false, fingerprint = 'same' } = attempt
  const exporter = create(kind)
  let time = 0
  if (!exporter.isAppendable) return openPartsSink(exporter, { dir: target, resume, fingerprint, partSamples: 4 })
  const now = (): number => (attempt.isSlow === true ? (time += 1000) : 0)
  return openFileSink(exporter, { path: target, resume, fingerprint, now })
}

/** Undefined if the export was already complete. */
async function attemptExport(attempt: Attempt): Promise<ExportReport | undefined> {
  const sink = await openSink(attempt)
  if (sink === undefined) return undefined
  try {
    return await exportSessions(sourcesOf(sessions, attempt.dieAt), sink, { build })
  } finally {
    // The operating system closes the files of a killed process; nothing else happens.
    await sink[Symbol.asyncDispose]()
  }
}

async function contentOf(target: string): Promise<Record<string, string>> {
  const names = await readdir(target).catch(() => undefined)
  if (names === undefined) return { '': (await readFile(target)).toString('base64') }
  const entries = names.map(async (name) => [name, (await readFile(join(target, name))).toString('base64')] as const)
  return Object.fromEntries(await Promise.all(entries))
}

const appendable = exporters.kinds.filter((kind) => create(kind).isAppendable)
const inParts = exporters.kinds.filter((kind) => !create(kind).isAppendable)

test.each([...appendable, ...inParts])(
  '%s: an export killed at any session and resumed is the whole one',
  async (kind) => {
    const deaths = fc.array(fc.record({ dieAt: fc.nat(12), isSlow: fc.boolean() }), { minLength: 1, maxLength: 4 })
    await inScratch(async (dir) => {
      const whole = join(dir, 'whole')
      const uninterrupted = await attemptExport({ kind, target: whole })
      let run = 0
      await fc.assert(
        fc.asyncProperty(deaths, async (attempts) => {
          const target = join(dir, `run-${(run += 1)}`)
          for (const [i, { dieAt, isSlow }] of attempts.entries()) {
            const attempt = { kind, target, dieAt, isSlow, resume: i > 0 }
            await attemptExport(attempt).catch((error: unknown) => {
              if (!(error instanceof Killed)) throw error
            })
          }
          const report = await attemptExport({ kind, target, resume: true })
          expect(await contentOf(target)).toEqual(await contentOf(whole))
          // Undefined if one of the attempts completed.
          if (report === undefined) return
          expect(report.sessions + report.resumedSessions).toBe(uninterrupted?.sessions)
          expect(report.samples + report.resumedSamples).toBe(uninterrupted?.samples)
        }),
        { numRuns: 15 },
      )
      expect((await readdir(dir)).filter((name) => /partial|progress/.test(name))).toEqual([])
    })
  },
)

test('a resumed export with other options or a truncated file is rejected, and an export without --resume starts over', async () => {
  await inScratch(async (dir) => {
    const target = join(dir, 'out.jsonl')
    const first = { kind: 'jsonl', target, dieAt: 6, isSlow: true }
    await expect(attemptExport(first)).rejects.toThrow(Killed)
    const other = { kind: 'jsonl', target, resume: true, fingerprint: 'other' }
    await expect(attemptExport(other)).rejects.toMatchObject({ code: 'config.invalid' })
    await rm(`${target}.partial`)
    await expect(attemptExport({ kind: 'jsonl', target, resume: true })).rejects.toMatchObject({
      code: 'config.invalid',
    })
    expect(await attemptExport({ kind: 'jsonl', target })).toMatchObject({ sessions: 12, resumedSessions: 0 })
    expect(await attemptExport({ kind: 'jsonl', target, resume: true })).toBeUndefined()
  })
})

test('openPartsSink() rejects a folder that is not empty', async () => {
  await inScratch(async (dir) => {
    const target = join(dir, 'out')
    await attemptExport({ kind: 'parquet', target })
    await expect(attemptExport({ kind: 'parquet', target })).rejects.toMatchObject({ code: 'config.invalid' })
    expect(await attemptExport({ kind: 'parquet', target, resume: true })).toBeUndefined()
  })
})

test('parts end after a session, and an export without samples still has one', async () => {
  await inScratch(async (dir) => {
    await attemptExport({ kind: 'parquet', target: join(dir, 'many') })
    const names = (await readdir(join(dir, 'many'))).toSorted()
    expect(names).toEqual(['part-00000.parquet', 'part-00001.parquet', 'part-00002.parquet'])
    const rows = await Promise.all(names.map(async (name) => readParquet(await readFile(join(dir, 'many', name)))))
    const owners = rows.map((part) => new Set(part.map((row) => row['session_id'])))
    expect(owners.reduce((sum, part) => sum + part.size, 0)).toBe(new Set(owners.flatMap((part) => [...part])).size)

    const sink = await openSink({ kind: 'verl', target: join(dir, 'none') })
    await exportSessions([], sink as ExportSink, { build })
    expect(await readParquet(await readFile(join(dir, 'none/part-00000.parquet')))).toEqual([])
  })
})

test('exportSessions() reports unreadable sessions and exports all others', async () => {
  const newer = new RolloutError('store.newer-schema', 'made by a newer version')
  const bad: ExportSource[] = [
    { id: 'corrupt', load: () => Promise.reject(new RolloutError('store.corrupt', 'damaged at byte 7')) },
    { id: 'newer', load: () => Promise.reject(newer) },
    { id: 'empty', load: async () => ({ ...sessionOf(1, 0), complete: false, incompleteReasons: ['it is empty'] }) },
    { id: 'strange', load: () => Promise.reject(new TypeError('x is not a function')) },
  ]
  const good = [...sourcesOf([sessionOf(1, 2), { ...sessionOf(2, 1), complete: false }, sessionOf(3, 0)])]
  const stream = new PassThrough()
  const output = text(stream)
  await using sink = openStreamSink(create('jsonl'), stream)
  const mixed = [bad[0]!, good[0]!, bad[1]!, bad[2]!, good[1]!, bad[3]!, good[2]!]
  let seen = 0
  const report = await exportSessions(mixed, sink, { build, onSession: () => (seen += 1) })
  stream.end()
  expect((await output).split('\n').length - 1).toBe(3)
  expect(seen).toBe(7)
  expect(report).toMatchObject({ sessions: 3, samples: 3, incomplete: ['ses_2'], tokens: { sampled: 9, trained: 9 } })
  expect(report.failed.map(({ session, code }) => [session, code])).toEqual([
    ['corrupt', 'store.corrupt'],
    ['newer', 'store.newer-schema'],
    ['empty', 'store.corrupt'],
    ['strange', 'internal.bug'],
  ])
  expect(report.failed[2]?.message).toContain('it is empty')
})

test('a builder that fails at a later sample leaves no part of that session behind', async () => {
  const { builder } = build
  const twice: typeof builder = {
    name: 'wrong',
    plan(graph, mayTrain) {
      const plan = builder.plan(graph, mayTrain)
      const [first, second] = plan.rows
      // The second row has the context of the first.
      if (first !== undefined && second !== undefined) {
        plan.rows[1] = { promptParts: 1, parts: [first.parts[0]!, second.parts[1]!] }
      }
      return plan
    },
  }
  const stream = new PassThrough()
  const output = text(stream)
  await using sink = openStreamSink(create('jsonl'), stream)
  const sources = sourcesOf([sessionOf(1, 2), sessionOf(2, 1)])
  const report = await exportSessions(sources, sink, { build: { ...build, builder: twice } })
  stream.end()
  expect((await output).match(/"session_id":"ses_\d"/g)).toEqual(['"session_id":"ses_2"'])
  expect(report.failed).toMatchObject([
    { session: 'ses_1', message: expect.stringContaining('do not have the context') },
  ])
})

test('samples have their rewards, ungraded samples have none, and rewards for unknown samples are rejected', async () => {
  const stream = new PassThrough()
  const output = text(stream)
  await using sink = openStreamSink(create('jsonl'), stream)
  const scores = new Map(
    [
      { session_id: 'ses_1', outcome_reward: 0.5, trace_rewards: [1, null], group_id: 'g' },
      { session_id: 'ses_2', trace_rewards: [1, 0, 0] },
    ].map((score) => [score.session_id, { metadata: {}, ...score }]),
  )
  const sources = sourcesOf([sessionOf(1, 2), sessionOf(2, 2), sessionOf(3, 1)])
  const report = await exportSessions(sources, sink, { build, scores, advantages: new Map([['ses_1', 0.25]]) })
  stream.end()
  const lines = (await output).trim().split('\n')
  const read = lines.map((line) => JSON.parse(line) as { reward: unknown; metadata: Record<string, unknown> })
  expect(read.map(({ reward, metadata }) => [reward, metadata['advantage'], metadata['group_id']])).toEqual([
    [1, 0.25, 'g'],
    [0.5, 0.25, 'g'],
    [null, undefined, undefined],
  ])
  expect(report.unscored).toBe(1)
  expect(report.failed).toMatchObject([{ session: 'ses_2', message: expect.stringContaining('3 trace_rewards') }])
})

test('exportSessions() counts rejected samples by the missing value', async () => {
  const stream = new PassThrough()
  const output = text(stream)
  const exporter = create('skyrl')
  await using sink = openStreamSink(exporter, stream)
  const scores = new Map([['ses_1', { session_id: 'ses_1', outcome_reward: 1, metadata: {} }]])
  const sources = sourcesOf([sessionOf(1, 2), sessionOf(2, 3)])
  const report = await exportSessions(sources, sink, { build, scores, needs: exporter.needs })
  stream.end()
  expect((await output).split('\n')).toHaveLength(3)
  expect(report).toMatchObject({ samples: 5, refused: { reward: 3 } })
})

test('a stream sink waits while the stream is full, and a broken stream ends the export', async () => {
  const stream = new PassThrough({ highWaterMark: 10 })
  await using sink = openStreamSink(create('jsonl'), stream)
  let done = 0
  const running = exportSessions(sourcesOf([sessionOf(1, 3)]), sink, { build, onSession: () => (done += 1) })
  await new Promise((resolve) => setImmediate(resolve))
  expect(done).toBe(0)
  expect(stream.readableLength).toBeGreaterThan(0)
  stream.destroy(Object.assign(new Error('broken pipe'), { code: 'EPIPE' }))
  await expect(running).rejects.toMatchObject({ code: 'EPIPE' })
})
