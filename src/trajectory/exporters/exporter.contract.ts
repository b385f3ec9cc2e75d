import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { Label } from '../../model/sample.ts'
import type { SessionRecord } from '../../model/session.ts'
import { FinishReason, LogprobMode, type Choice, type Turn } from '../../model/turn.ts'
import { buildSession } from '../build-session.ts'
import { builders } from '../builders/index.ts'
import type { RequestReader } from '../graph/call-graph.ts'
import { chatMessageOf } from '../sample-messages.ts'
import { scoreSession, type ScoredSession } from '../score-session.ts'
import { CallFilter } from '../select-calls.ts'
import type { Exporter } from './exporter.ts'
import { runs } from '../../../test/support/runs.ts'

export interface ExporterContract {
  create(): Exporter
  /** Parses a whole file as its consumer does, in the order written. Throws if the consumer's schema rejects it. */
  read(file: Uint8Array): unknown[] | Promise<unknown[]>
  /** Fails unless `records`, read from a file with only this session, match the session. */
  check(records: unknown[], session: ScoredSession): void | Promise<void>
  /** Sessions to test. Absent: any session. */
  sessions?: fc.Arbitrary<ScoredSession>
}

/** Tests that every exporter must pass. */
export function describeExporter(
  kind: string,
  { create, read, check, sessions = anySession() }: ExporterContract,
): void {
  describe(`exporter ${kind}`, () => {
    test('its name is its kind, and its extension is plain', () => {
      const exporter = create()
      expect(exporter.name).toBe(kind)
      expect(exporter.extension).toMatch(/^[a-z][a-z0-9.]*[a-z0-9]$/)
    })

    test('a reader of the file gets the data of the session, for any session', async () => {
      await fc.assert(
        fc.asyncProperty(sessions, async (session) => {
          await check(await read(writeFile(create(), [session])), session)
        }),
        { numRuns: runs(70) },
      )
    })

    test('a file of several sessions contains them in order', async () => {
      const two = fc.tuple(
        sessions,
        sessions.map((session) => renamed(session, 'ses_2')),
      )
      await fc.assert(
        fc.asyncProperty(two, async ([first, second]) => {
          const both = await read(writeFile(create(), [first, second]))
          const alone = await read(writeFile(create(), [first]))
          expect(both.slice(0, alone.length)).toEqual(alone)
          const start = { sessions: 1, samples: [...first.samples()].length }
          const after = await read(writeFile(create(), [second], start))
          expect(both.slice(alone.length)).toEqual(after)
        }),
        { numRuns: runs(25) },
      )
    })

    test('a session without samples writes nothing', () => {
      const empty = emptySession()
      const writer = create().open()
      expect([...writer.add(empty)]).toEqual([])
    })

    test('an appendable format writes each session completely before the next', () => {
      const exporter = create()
      if (!exporter.isAppendable) return
      fc.assert(
        fc.property(sessions, (session) => {
          const writer = exporter.open()
          const pieces = [...writer.add(session)]
          expect([...writer.end()]).toEqual([])
          if (pieces.length > 0) expect(Buffer.from(pieces.at(-1) as string).at(-1)).toBe(0x0a)
        }),
        { numRuns: 20 },
      )
    })
  })
}

export function writeFile(
  exporter: Exporter,
  sessions: readonly ScoredSession[],
  start?: Parameters<Exporter['open']>[0],
): Uint8Array {
  const writer = exporter.open(start)
  const pieces = sessions.flatMap((session) => [...writer.add(session)])
  return Buffer.concat([...pieces, ...writer.end()].map((piece) => Buffer.from(piece as string)))
}

/** For `read`: parses a file with one JSON value per line. */
export function readLines(file: Uint8Array): unknown[] {
  const text = new TextDecoder('utf-8', { fatal: true }).decode(file)
  if (text === '') return []
  expect(text.endsWith('\n')).toBe(true)
  return text
    .slice(0, -1)
    .split('\n')
    .map((line) => JSON.parse(line) as unknown)
}

/** Returns the numbers as a JSON reader gets them; null for unknown values. */
export function jsonNumbers(values: Iterable<number>): (number | null)[] {
  return Array.from(values, (value) => (Number.isNaN(value) ? null : value))
}

// --- random sessions --------------------------------------------------------------------------------------------------

/** Reads the random sessions: their requests are Chat Completions bodies. */
export const plainReader: RequestReader = {
  readRequest: () => undefined,
  readPrompt: ({ request }) => {
    const { messages, tools } = JSON.parse(request) as { messages: unknown[]; tools?: unknown[] }
    return { messages, tools: tools ?? null }
  },
}

export function emptySession(): ScoredSession {
  return toScored('ses_1', [], { builder: 'per_request', keepsUnknownLogprobs: false, score: undefined })
}

const anyText = fc.oneof(
  fc.string({ unit: 'grapheme', maxLength: 12 }),
  fc.constantFrom('', 'Ünïcödé \u2028 第一行\n🐙', '<tool_call>{}</tool_call>', '"quoted" \\ \u0000'),
)

const anyArguments = fc.oneof(
  fc.constantFrom('{"a": 1.0}', '{"path":  "a b.txt",\n"ü": "\\u00fc"}', '{}', '', '{not json', '[1, 2]', '1e400'),
  fc
    .dictionary(fc.string({ maxLength: 4 }), fc.oneof(anyText, fc.integer(), fc.boolean()), { maxKeys: 3 })
    .map((value) => JSON.stringify(value)),
)

/** Log probabilities are float32; JSON does not distinguish -0 from 0. */
const anyLogprob = fc.float({ max: 0, noNaN: true, noDefaultInfinity: true }).map((value) => value + 0)

const anyIds = (minLength: number): fc.Arbitrary<number[]> =>
  fc.array(fc.integer({ min: 0, max: 2 ** 31 - 1 }), { minLength, maxLength: 6 })

const anyAnswer = fc.record({
  text: anyText,
  reasoning: fc.option(anyText, { nil: undefined }),
  calls: fc.array(fc.record({ name: fc.constantFrom('bash', 'read_file'), arguments: anyArguments }), { maxLength: 2 }),
  sampled: fc.array(fc.tuple(fc.integer({ min: 0, max: 200_000 }), anyLogprob), { minLength: 1, maxLength: 6 }),
  lacksLogprob: fc.constantFrom(false, false, false, true),
  finishReason: fc.constantFrom(...FinishReason.options),
})

const anyStep = fc.record({
  answer: anyAnswer,
  toolResult: anyText,
  userSays: fc.option(anyText, { nil: undefined, freq: 2 }),
  userShows: fc.constantFrom(false, false, true),
  between: anyIds(1),
  /** The next request continues this answer, has a rewritten history, repeats the request, or branches off earlier. */
  next: fc.constantFrom(
    'on' as const,
    'on' as const,
    'on' as const,
    'rewritten' as const,
    'again' as const,
    'back' as const,
  ),
  retells: fc.boolean(),
  weightVersion: fc.option(fc.constantFrom('1', '2'), { nil: undefined }),
  /** The newest weights that may have sampled, where the version is uncertain. */
  newestVersion: fc.option(fc.constant('3'), { nil: undefined }),
  temperature: fc.option(fc.constantFrom(0, 0.7, 1), { nil: undefined }),
  forcedTemperature: fc.option(fc.constantFrom(0.5, 1), { nil: undefined }),
  /** How the engine samples a call that names no parameter; absent in records of earlier versions. */
  defaults: fc.option(
    fc.constantFrom({ temperature: 1, topP: 1, topK: 0, minP: 0 }, { temperature: 0.6, topP: 0.95, topK: 20, minP: 0 }),
    { nil: undefined },
  ),
  logprobMode: fc.option(fc.constantFrom(...LogprobMode.options), { nil: undefined }),
  cachedTokens: fc.option(fc.constantFrom(0, 3), { nil: undefined }),
})
type Step = typeof anyStep extends fc.Arbitrary<infer T> ? T : never

const anyScore = fc.option(
  fc.record({
    outcome_reward: fc.option(fc.constantFrom(0, 1, -0.5, 0.1), { nil: null }),
    components: fc.option(fc.constant({ tests: 0.25, style: 1 }), { nil: null }),
    group_id: fc.option(fc.constantFrom('task-1', 'täsk 2'), { nil: null }),
  }),
  { nil: undefined },
)
type Score = typeof anyScore extends fc.Arbitrary<infer T> ? T : never

const TOOLS = ['bash', 'read_file'].map((name) => ({
  type: 'function',
  function: {
    name,
    description: `Rüns ${name}`,
    parameters: { type: 'object', properties: { a: { type: 'number' } } },
  },
}))

/** One conversation with tools, repeated histories and forks, built by any of the builders. */
export function anySession(): fc.Arbitrary<ScoredSession> {
  return fc
    .record({
      system: fc.option(anyText, { nil: undefined }),
      user: anyText,
      tools: fc.boolean(),
      prompt: anyIds(1),
      steps: fc.array(anyStep, { minLength: 1, maxLength: 5 }),
      builder: fc.constantFrom('per_request' as const, 'prefix_merging' as const, 'prefix_tree' as const),
      keepsUnknownLogprobs: fc.boolean(),
      score: anyScore,
      advantage: fc.option(fc.constantFrom(-1, 0.25), { nil: undefined }),
    })
    .map((shape) => toScored('ses_1', toTurns('ses_1', shape), shape))
}

/** Returns the session with another id. */
function renamed(session: ScoredSession, id: string): ScoredSession {
  const { built, score } = session
  const rename = (text: string): string => text.replace('ses_1', id)
  return {
    ...session,
    built: { ...built, session: { ...built.session, id } },
    ...(score === undefined ? {} : { score: { ...score, session_id: id } }),
    *samples() {
      for (const sample of session.samples()) yield { ...sample, id: rename(sample.id), sessionId: id }
    },
  }
}

/** Returns the session with other labels. */
export function relabelled(session: ScoredSession, labelOf: (index: number) => Label): ScoredSession {
  const { graph } = session.built
  const labels = new Map(graph.nodes.map((node, i) => [node.key, labelOf(i)]))
  const nodes = graph.nodes.map((node) =>
    Object.assign(Object.create(node) as typeof node, { label: labels.get(node.key) }),
  )
  return { ...session, built: { ...session.built, graph: { ...graph, nodes } } }
}

function toTurns(
  sessionId: string,
  shape: { system?: string | undefined; user: string; tools: boolean; prompt: number[]; steps: Step[] },
): Turn[] {
  const opening: unknown[] = [
    ...(shape.system === undefined ? [] : [{ role: 'system', content: shape.system }]),
    { role: 'user', content: shape.user },
  ]
  let state: Asked = { messages: opening, promptIds: Int32Array.from(shape.prompt) }
  /** Continuations of the conversation after the first answer. */
  let early: Asked | undefined
  return shape.steps.map((step, index) => {
    const { messages, promptIds } = state
    const choice = toChoice(step, index)
    const body = {
      messages,
      ...(shape.tools ? { tools: TOOLS } : {}),
      ...(step.temperature === undefined ? {} : { temperature: step.temperature }),
    }
    const answer = chatMessageOf(choice.message)
    if (step.retells) delete answer['reasoning_content']
    const on: Asked = {
      messages: [...messages, answer, ...toAdded(step, index)],
      promptIds: Int32Array.of(...promptIds, ...choice.ids, ...step.between),
    }
    early ??= on
    const summary = { role: 'user', content: `Summary of ${index + 1} turns: ${step.toolResult}` }
    const rewritten: Asked = {
      messages: [...opening, summary],
      promptIds: Int32Array.of(...shape.prompt, 7, ...step.between),
    }
    state = { on, rewritten, again: state, back: early }[step.next]
    return toTurn(sessionId, index, step, promptIds, choice, JSON.stringify(body))
  })
}

interface Asked {
  messages: unknown[]
  promptIds: Int32Array
}

function toAdded({ answer, toolResult, userSays, userShows }: Step, index: number): unknown[] {
  const results = answer.calls.map((_, i) => ({
    role: 'tool',
    tool_call_id: callId(index, i),
    content: i === 0 ? toolResult : [{ type: 'text', text: toolResult }],
  }))
  const image = { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } }
  const says = userSays ?? 'go on'
  if (userShows) return [...results, { role: 'user', content: [{ type: 'text', text: says }, image] }]
  return userSays === undefined && results.length > 0 ? results : [...results, { role: 'user', content: says }]
}

function callId(turn: number, call: number): string {
  return `call_${turn}_${call}`
}

function toChoice({ answer, weightVersion, newestVersion: newest }: Step, turn: number): Choice {
  const { sampled } = answer
  const logprobs = Float32Array.from(sampled, ([, logprob]) => logprob)
  if (answer.lacksLogprob) logprobs[0] = Number.NaN
  return {
    index: 0,
    message: {
      role: 'assistant',
      content: [{ type: 'text', text: answer.text }],
      ...(answer.reasoning === undefined ? {} : { reasoning: answer.reasoning }),
      toolCalls: answer.calls.map((call, i) => ({ id: callId(turn, i), ...call })),
    },
    finishReason: answer.finishReason,
    ids: Int32Array.from(sampled, ([id]) => id),
    logprobs,
    ...(weightVersion === undefined
      ? {}
      : { weightSpans: [{ from: 0, version: weightVersion, ...(newest === undefined ? {} : { newest }) }] }),
  }
}

function toTurn(
  sessionId: string,
  index: number,
  step: Step,
  promptIds: Int32Array,
  choice: Choice,
  request: string,
): Turn {
  const { weightVersion, forcedTemperature, cachedTokens, logprobMode } = step
  return {
    id: `turn_${index}`,
    sessionId,
    index,
    dialect: 'openai-chat',
    startedAt: 1_700_000_000_000 + index * 1000,
    endedAt: 1_700_000_000_500 + index * 1000,
    model: 'policy',
    stream: false,
    request,
    headers: {},
    forced: forcedTemperature === undefined ? {} : { temperature: forcedTemperature },
    ...samplingOf(step),
    delivery: 'delivered',
    response: {
      id: `r${index}`,
      model: 'served',
      created: 1_700_000_000,
      promptIds,
      choices: [choice],
      usage: {
        promptTokens: promptIds.length,
        completionTokens: choice.ids.length,
        ...(cachedTokens === undefined ? {} : { cachedTokens }),
      },
      grade: 'exact',
      gradeReasons: [],
      ...(weightVersion === undefined ? {} : { weightVersion }),
      ...(logprobMode === undefined ? {} : { logprobMode }),
    },
  }
}

function samplingOf({ defaults, temperature: asked, forcedTemperature }: Step): Pick<Turn, 'sampling'> {
  if (defaults === undefined) return {}
  const sent = forcedTemperature ?? asked
  return {
    sampling: {
      asked: { n: 1, ...(asked === undefined ? {} : { temperature: asked }) },
      sent: sent === undefined ? {} : { temperature: sent },
      defaults,
      assumed: defaults.temperature === 1 ? ['temperature', 'topP', 'topK', 'minP'] : [],
    },
  }
}

function toScored(
  id: string,
  turns: Turn[],
  how: {
    builder: 'per_request' | 'prefix_merging' | 'prefix_tree'
    keepsUnknownLogprobs: boolean
    score: Score
    advantage?: number | undefined
  },
): ScoredSession {
  const record: SessionRecord = { id, createdAt: 0, origin: {}, turns, complete: true, incompleteReasons: [] }
  const built = buildSession(record, {
    builder: builders.create(builders.config.parse({ kind: how.builder }), {}),
    filter: CallFilter.parse({ labels: Label.options, requireLogprobs: !how.keepsUnknownLogprobs }),
    weighting: 'tokens',
    reader: plainReader,
  })
  return scoreSession(built, how.score && { session_id: id, metadata: {}, ...how.score }, how.advantage)
}
