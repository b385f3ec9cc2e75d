import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { anyCodePoint } from '../../test/support/any-code-point.ts'
import type { Choice, Delivery, Turn, TurnResponse } from '../model/turn.ts'
import type { SessionLog, SessionReader, SessionStore, TurnEnd, TurnIntent } from './store.ts'

/** One call of a `SessionLog`, as data. */
export type LogStep =
  | { step: 'intent'; intent: TurnIntent }
  | { step: 'end'; end: TurnEnd }
  | { step: 'delivery'; turnId: string; delivery: Delivery }

export const OPENING = {
  id: 'session-1',
  createdAt: 1_700_000_000_000,
  origin: { command: 'test', nested: { a: [1, null] } },
}

/** Behaviour of every session store. */
export function describeSessionStore(
  name: string,
  create: (dir: string) => { store: SessionStore; reader: SessionReader },
): void {
  describe(name, () => {
    test('load() returns every session as it was appended', async () => {
      await fc.assert(
        fc.asyncProperty(anySteps, async (steps) => {
          await inScratch(async (dir) => {
            const { store, reader } = create(dir)
            const log = await store.open(OPENING)
            await appendAll(log, steps)
            await log.close()
            expect(log.broken).toBeUndefined()
            const session = await reader.load(OPENING.id)
            expect(comparable(session.turns)).toEqual(comparable(turnsOf(steps)))
            expect(session).toMatchObject(OPENING)
            const unfinished = turnsOf(steps).filter((turn) => turn.endedAt === undefined)
            expect(session.incompleteReasons).toHaveLength(unfinished.length)
            expect(session.complete).toBe(unfinished.length === 0)
          })
        }),
        { numRuns: 100 },
      )
    })

    test('load() returns an open session as incomplete', async () => {
      await inScratch(async (dir) => {
        const { store, reader } = create(dir)
        const log = await store.open(OPENING)
        log.appendIntent(intentOf('turn-0', 0, 'hello'))
        await log.appendEnd({ turnId: 'turn-0', endedAt: 2, forced: {} })
        const session = await reader.load(OPENING.id)
        expect(session.turns).toHaveLength(1)
        expect(session).toMatchObject({ complete: false, incompleteReasons: ['the log was not closed'] })
        await log.close()
        expect(await reader.load(OPENING.id)).toMatchObject({ complete: true, incompleteReasons: [] })
      })
    })

    test('list() orders sessions by creation time', async () => {
      await inScratch(async (dir) => {
        const { store, reader } = create(dir)
        expect(await reader.list()).toEqual([])
        await Promise.all(
          [3, 1, 2].map(async (n) => (await store.open({ ...OPENING, id: `s${4 - n}`, createdAt: n })).close()),
        )
        expect(await reader.list()).toEqual(['s3', 's2', 's1'])
      })
    })

    test('disposing closes open logs, and closing twice is harmless', async () => {
      await inScratch(async (dir) => {
        const { store, reader } = create(dir)
        const log = await store.open(OPENING)
        await store[Symbol.asyncDispose]()
        await log.close()
        expect(await reader.load(OPENING.id)).toMatchObject({ complete: true, turns: [] })
      })
    })

    test('load() refuses an unknown session', async () => {
      await inScratch(async (dir) => {
        const { reader } = create(dir)
        await expect(reader.load('nobody')).rejects.toMatchObject({ failure: { code: 'store.unavailable' } })
        await expect(reader.load('../nobody')).rejects.toMatchObject({ failure: { code: 'store.unavailable' } })
      })
    })
  })
}

export async function inScratch<T>(work: (dir: string) => Promise<T>): Promise<T> {
  const dir = await mkdtemp(join(tmpdir(), 'polar-store-'))
  try {
    return await work(dir)
  } finally {
    await rm(dir, { recursive: true, force: true })
  }
}

export async function appendAll(log: SessionLog, steps: readonly LogStep[]): Promise<void> {
  const ends: Promise<void>[] = []
  for (const step of steps) {
    const end = append(log, step)
    if (end !== undefined) ends.push(end)
  }
  await Promise.all(ends)
}

export function append(log: SessionLog, step: LogStep): Promise<void> | undefined {
  switch (step.step) {
    case 'intent':
      log.appendIntent(step.intent)
      return undefined
    case 'end':
      return log.appendEnd(step.end)
    case 'delivery':
      log.appendDelivery(step.turnId, step.delivery)
      return undefined
  }
}

/** The expected turns after these steps. */
export function turnsOf(steps: readonly LogStep[]): Turn[] {
  const turns = new Map<string, Turn>()
  for (const step of steps) {
    if (step.step === 'intent') {
      turns.set(step.intent.id, { ...step.intent, sessionId: OPENING.id, forced: {}, delivery: 'unknown' })
      continue
    }
    const turn = turns.get(step.step === 'end' ? step.end.turnId : step.turnId)
    if (turn === undefined) continue
    if (step.step === 'delivery') turn.delivery = step.delivery
    else {
      const { turnId: _turnId, ...end } = step.end
      Object.assign(turn, end)
    }
  }
  return [...turns.values()].sort((a, b) => a.index - b.index)
}

/** Arrays as bytes, so that NaN values are distinguished and long arrays are compared quickly. */
export function comparable(turns: readonly Turn[]): unknown[] {
  return turns.map((turn) => ({
    ...turn,
    response: turn.response && {
      ...turn.response,
      promptIds: bytesOf(turn.response.promptIds),
      choices: turn.response.choices.map((choice) => ({
        ...choice,
        ids: bytesOf(choice.ids),
        logprobs: bytesOf(choice.logprobs),
      })),
    },
  }))
}

function bytesOf(array: Int32Array | Float32Array): string {
  return Buffer.from(array.buffer, array.byteOffset, array.byteLength).toString('base64')
}

export function intentOf(id: string, index: number, request: string): TurnIntent {
  return {
    id,
    index,
    dialect: 'openai-chat',
    startedAt: 1000 + index,
    model: 'policy',
    stream: index % 2 === 0,
    request,
    headers: index % 3 === 0 ? {} : { 'user-agent': `agent/${index}` },
    ...(index % 5 === 4 ? { retryOf: `turn-${index - 1}` } : {}),
  }
}

/** Plan of one generated turn. Numbers select among existing turns; arrays are generated from a seed, because they are long. */
interface TurnPlan {
  seed: number
  /** Which earlier turn this one continues, and how much of it; beyond the earlier turns: none. */
  parent: number
  kept: number
  added: number
  sampled: number[]
  text: string
  outcome: 'answered' | 'partial' | 'failed' | 'unfinished'
  delivery: Delivery | 'none'
  /** How many later turns start before this one ends. */
  duration: number
  forced: Record<string, unknown>
}

const anyPlan: fc.Arbitrary<TurnPlan> = fc.record({
  seed: fc.nat(),
  parent: fc.nat(6),
  kept: fc.constantFrom(1, 1, 1, 0.9, 0.5, 0),
  added: fc.constantFrom(0, 1, 30, 100, 400),
  sampled: fc.array(fc.constantFrom(0, 1, 70, 300), { maxLength: 3 }),
  text: fc.oneof(fc.string({ unit: anyCodePoint, maxLength: 20 }), fc.string({ unit: 'grapheme', maxLength: 300 })),
  outcome: fc.constantFrom('answered', 'answered', 'answered', 'partial', 'failed', 'unfinished'),
  delivery: fc.constantFrom('delivered', 'undelivered', 'unknown', 'none'),
  duration: fc.constantFrom(0, 0, 0, 1, 3),
  forced: fc.dictionary(fc.string(), fc.jsonValue()).map((value) => JSON.parse(JSON.stringify(value))),
})

/** Turns of one session in any interleaving, each continuing an earlier one wholly, partly or not at all. */
export const anySteps: fc.Arbitrary<LogStep[]> = fc.array(anyPlan, { maxLength: 10 }).map(toSteps)

export function toSteps(plans: readonly TurnPlan[]): LogStep[] {
  const steps: LogStep[] = []
  const turns: { request: string; prompt: Int32Array; sampled: Int32Array[] }[] = []
  const open: { endsAt: number; steps: LogStep[] }[] = []
  plans.forEach((plan, index) => {
    const random = createRandom(plan.seed)
    const parent = turns[plan.parent]
    const whole = parent === undefined ? [] : [...parent.prompt, ...(parent.sampled.at(-1) ?? [])]
    const kept = whole.slice(0, Math.floor(whole.length * plan.kept))
    const prompt = Int32Array.from([...kept, ...randomIds(random, plan.added)])
    const sampled = plan.sampled.map((length) => randomIds(random, length))
    const request = nextRequest(parent?.request ?? `{"messages":[${plan.text}`, plan)
    turns.push({ request, prompt, sampled })
    const id = `turn-${index}`
    steps.push({ step: 'intent', intent: intentOf(id, index, request) })
    if (plan.outcome === 'unfinished') return
    const last: LogStep[] = [{ step: 'end', end: endOf(id, index, plan, prompt, sampled, random) }]
    if (plan.delivery !== 'none') last.push({ step: 'delivery', turnId: id, delivery: plan.delivery })
    open.push({ endsAt: index + plan.duration, steps: last })
    for (const ended of open.filter(({ endsAt }) => endsAt <= index)) {
      open.splice(open.indexOf(ended), 1)
      steps.push(...ended.steps)
    }
  })
  return [...steps, ...open.flatMap((ended) => ended.steps)]
}

/** A request like those of harnesses: the history, new text, and the tools after it. */
function nextRequest(earlier: string, plan: TurnPlan): string {
  const tools = `],"tools":"${'ж🎉tool'.repeat(60)}"}`
  const history = earlier.endsWith(tools) ? earlier.slice(0, -tools.length) : earlier
  const kept = plan.kept === 0 ? '' : history
  return `${kept}{"text":${JSON.stringify(plan.text).repeat(1 + (plan.added % 7))}}${tools}`
}

function endOf(
  turnId: string,
  index: number,
  plan: TurnPlan,
  promptIds: Int32Array,
  sampled: readonly Int32Array[],
  random: () => number,
): TurnEnd {
  const end: TurnEnd = { turnId, endedAt: 2000 + index, forced: plan.forced }
  if (plan.outcome !== 'answered') {
    end.failure = { code: 'upstream.reset', message: `lost "it" ${plan.text}`, status: 502 }
  }
  if (plan.outcome === 'failed') return end
  if (plan.kept === 1) {
    end.sampling = {
      asked: { n: 1, temperature: 1 },
      sent: { n: 1, temperature: 0.5, stop: [plan.text] },
      defaults: { topP: 1 },
      assumed: ['topP'],
    }
  }
  const response: TurnResponse = {
    id: `answer-${index}`,
    model: 'policy',
    created: 1_700_000_000,
    promptIds,
    choices: sampled.map((ids, position) => choiceOf(ids, position, plan, random)),
    grade: plan.added % 2 === 0 ? 'exact' : 'text-only',
    gradeReasons: plan.added % 2 === 0 ? [] : ['no ids', plan.text],
  }
  if (plan.added > 0) response.usage = { promptTokens: promptIds.length, completionTokens: sampled[0]?.length ?? 0 }
  if (plan.added > 30) Object.assign(response, { weightVersion: 'step-3' })
  return { ...end, firstTokenAt: 1500 + index, response }
}

function choiceOf(ids: Int32Array, index: number, plan: TurnPlan, random: () => number): Choice {
  const logprobs = Float32Array.from(ids, () => (random() < 0.1 ? Number.NaN : -20 * random()))
  const choice: Choice = {
    index,
    message: { role: 'assistant', content: [{ type: 'text', text: plan.text }], toolCalls: [] },
    finishReason: 'stop',
    ids,
    logprobs,
  }
  if (plan.added > 30) {
    choice.weightSpans = [
      { from: 0, version: 'step-3' },
      { from: 1, version: 'step-3', newest: 'step-4' },
    ]
  }
  return plan.kept === 1 ? { ...choice, stopReason: plan.text } : choice
}

function randomIds(random: () => number, length: number): Int32Array {
  return Int32Array.from({ length }, () => Math.floor(random() * 150_000))
}

/** Mulberry32, a seeded random generator. */
export function createRandom(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
