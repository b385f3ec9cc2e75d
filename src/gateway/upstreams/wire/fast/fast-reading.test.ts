import { Readable } from 'node:stream'
import fc from 'fast-check'
import type { Dispatcher } from 'undici'
import { describe, expect, test } from 'vitest'
import { JsonBytes } from '../../../../lib/json/json-bytes.ts'
import type { TurnRequest } from '../../../../model/turn.ts'
import type { WireEvent, WireFields } from '../../../wire-event.ts'
import { TurnCapture } from '../../../capture/capture-turn.ts'
import { openaiChat } from '../../../dialects/openai-chat.ts'
import { bareContext, type Route } from '../../../dialects/dialect.ts'
import { ChunkReader, readAnswer } from '../chat-answer.ts'
import { anyCodePoint } from '../../../../../test/support/any-code-point.ts'
import { ByteJoiner, PromptIdCache, type FastReading } from './read-fast.ts'
import { runs } from '../../../../../test/support/runs.ts'

/*
 * The reference reader defines the result. All tests read the same bytes with both readers and expect the same events, the
 * same captured turn and the same answer to the harness.
 */

// --- answers as engines write them, and as they might -----------------------------------------------------------------

/** Mostly the usual value: an answer with many unusual values is never read fast, and then nothing is compared. */
function mostly<T, U>(usual: fc.Arbitrary<T>, odd: fc.Arbitrary<U>, weight = 12): fc.Arbitrary<T | U> {
  return fc.oneof({ weight, arbitrary: usual }, odd)
}

const anyText = fc.oneof(
  fc.string({ unit: 'grapheme', maxLength: 12 }),
  fc.string({ unit: anyCodePoint, maxLength: 6 }),
  fc.constantFrom(
    '',
    '"',
    '\\',
    '\\"',
    '],"top_logprobs":[]}',
    '","logprob":',
    '"token_ids":[1]',
    '\u2702',
    '\u27020',
    '\n\n',
  ),
)

const anyLogprob = mostly(
  fc.float({ min: -9, max: Math.fround(-1e-8), noNaN: true }).map(String),
  fc.oneof(
    fc.float({ max: 0, noNaN: true, noDefaultInfinity: true }).map(String),
    fc.double({ min: -20, max: 0, noNaN: true }).map(String),
    fc.float({ min: -9, max: Math.fround(-1e-8), noNaN: true }).map((value) => value.toPrecision(17)),
    fc.constantFrom(
      '0',
      '-0',
      '0.0',
      '-0.0',
      '-1e-7',
      '-1.1920928244535389e-07',
      '-9999',
      '-9999.0',
      '-9998.999999999999999',
      '1E+2',
      '-12.5',
      '0.1234567890125',
      '01',
      '1.',
      '-',
      'null',
    ),
  ),
)

const anyEntry = fc.record({
  token: anyText,
  logprob: anyLogprob,
  bytes: mostly(
    fc.array(fc.nat(255), { maxLength: 6 }).map((bytes) => JSON.stringify(bytes)),
    fc.constantFrom('null', '[1000]', '[01]', '[1,]', '[,1]', '[ 1]', '["]"]', '[[1]]'),
    40,
  ),
  top: mostly(fc.constant('[]'), fc.constant('[{"token":"a","logprob":-1,"bytes":[97]}]'), 40),
})
type Entry = typeof anyEntry extends fc.Arbitrary<infer T> ? T : never

const anyId = mostly(fc.nat(150_000), fc.constantFrom(0, 999_999_999, 2 ** 31 - 1, 2 ** 31, -1), 60)

/** JSON text of a value, with or without the escapes that Python writes by default. */
function print(value: unknown, ascii: boolean): string {
  const json = JSON.stringify(value)
  return ascii
    ? json.replaceAll(/[^\u0020-\u007e]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`)
    : json
}

function printEntry({ token, logprob, bytes, top }: Entry, ascii: boolean): string {
  return `{"token":${print(token, ascii)},"logprob":${logprob},"bytes":${bytes},"top_logprobs":${top}}`
}

function printList(items: readonly string[]): string {
  return `[${items.join(',')}]`
}

const anyMembers = mostly(
  fc.constant([]),
  fc.array(
    fc.constantFrom(
      '"service_tier":null',
      '"system_fingerprint":"fp"',
      '"prompt_text":null',
      '"kv_transfer_params":null',
      '"prompt_token_ids":[7,8]',
      '"prompt_token_ids":"\\u27020"',
      '"token_ids":"\u27020"',
      '"logprobs":{"content":"\\u27021"}',
      '"token_ids":[1,2]',
      '"x":{"token_ids":[3],"logprobs":{"content":[]}}',
      '"logprobs":null',
      '"note":"\\u2702 and \\"token_ids\\":[1]"',
    ),
    { maxLength: 3 },
  ),
  4,
)

const anyChoice = fc.record({
  message: fc.record(
    {
      role: fc.constant('assistant'),
      content: fc.option(anyText),
      reasoning_content: fc.option(anyText),
      tool_calls: fc.array(
        fc.record({
          id: fc.string(),
          type: fc.constant('function'),
          function: fc.record({ name: anyText, arguments: anyText }),
        }),
        { maxLength: 2 },
      ),
    },
    { requiredKeys: ['role'] },
  ),
  finish: mostly(fc.constantFrom('"stop"', '"length"', '"tool_calls"', 'null', '"odd"'), fc.constant('7')),
  entries: fc.option(fc.array(anyEntry, { maxLength: 4 })),
  ids: fc.option(fc.array(anyId, { maxLength: 5 })),
  members: anyMembers,
})

const anyAnswer = fc
  .record({
    choices: fc.array(anyChoice, { maxLength: 3 }),
    promptIds: fc.option(fc.array(anyId, { maxLength: 1200 })),
    usage: fc.option(fc.record({ prompt_tokens: fc.nat(99), completion_tokens: fc.nat(99) })),
    members: anyMembers,
    ascii: fc.boolean(),
  })
  .map(({ choices, promptIds, usage, members, ascii }) => {
    const printed = choices.map(({ message, finish, entries, ids, members: more }, i) =>
      [
        `{"index":${i}`,
        `"message":${print(message, ascii)}`,
        `"logprobs":${entries === null ? 'null' : `{"content":${printList(entries.map((entry) => printEntry(entry, ascii)))}}`}`,
        `"finish_reason":${finish}`,
        ...(ids === null ? [] : [`"token_ids":${JSON.stringify(ids)}`]),
        ...more,
      ].join(','),
    )
    return (
      [
        `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"tiny"`,
        `"choices":[${printed.map((choice) => `${choice}}`).join(',')}]`,
        ...(usage === null ? [] : [`"usage":${JSON.stringify(usage)}`]),
        ...(promptIds === null ? [] : [`"prompt_token_ids":${JSON.stringify(promptIds)}`]),
        ...members,
      ].join(',') + '}'
    )
  })

/** Changes, drops, repeats or inserts some bytes. */
const anyDamage = mostly(
  fc.constant([]),
  fc.array(
    fc.record({
      at: fc.nat(),
      bytes: fc.constantFrom(
        '',
        '"',
        ',',
        ']',
        '}',
        '0',
        '-',
        '\\',
        '[',
        '\u0000',
        'é',
        '\ud83d',
        '1',
        '\n',
        '\r',
        '\n\n',
        ' ',
      ),
      drop: fc.nat(3),
    }),
    { maxLength: 2 },
  ),
  1,
)

function damage(bytes: Buffer, changes: typeof anyDamage extends fc.Arbitrary<infer T> ? T : never): Buffer {
  return changes.reduce((text, { at, bytes: put, drop }) => {
    const place = at % (text.length + 1)
    return Buffer.concat([text.subarray(0, place), Buffer.from(put), text.subarray(place + drop)])
  }, bytes)
}

const anyCuts = fc.array(fc.nat(), { maxLength: 8 })

function cut(bytes: Buffer, places: readonly number[]): Buffer[] {
  const edges = [0, ...places.map((place) => place % (bytes.length + 1)).sort((a, b) => a - b), bytes.length]
  return edges.slice(1).map((edge, i) => bytes.subarray(edges[i], edge))
}

// --- what was read ----------------------------------------------------------------------------------------------------

function fastReading(promptIdCache = new PromptIdCache()): FastReading {
  return { promptIdCache, joiner: new ByteJoiner() }
}

/** Splits a run into its chunks. */
function toChunks(event: WireEvent): readonly WireEvent[] {
  if (event.type !== 'choice-delta' || event.run === undefined) return [event]
  const { form } = event.run
  const chunks = event.run.readParts().map((parts) => form.withParts(parts))
  expect(event.ids).toEqual(Int32Array.from(chunks.flatMap(({ ids = [] }) => [...ids])))
  expect(event.logprobs).toEqual(Float32Array.from(chunks.flatMap(({ logprobs = [] }) => [...logprobs])))
  expect(event.text).toBe(joined(chunks.map(({ text }) => text)))
  expect(event.reasoning).toBe(joined(chunks.map(({ reasoning }) => reasoning)))
  expect(event.toolCalls?.[0]?.arguments).toBe(joined(chunks.map(({ toolCalls }) => toolCalls?.[0]?.arguments)))
  const { wire } = event
  expect(wire?.['token_ids']).toEqual(Array.from(event.ids ?? []))
  expect(wire?.['logprobs']).toEqual({
    content: chunks.flatMap((chunk) => contentOf(chunk.wire)),
  })
  return chunks
}

function contentOf(wire: WireFields = {}): unknown[] {
  return (wire['logprobs'] as { content: unknown[] }).content
}

function joined(texts: readonly (string | undefined)[]): string | undefined {
  return texts.every((text) => text === undefined) ? undefined : texts.join('')
}

/** Converts an event to plain data. */
function toPlain(event: WireEvent): unknown {
  switch (event.type) {
    case 'answer-start': {
      const { promptTokenBytes: _bytes, promptTokenIds, ...rest } = event
      return defined({ ...rest, promptTokenIds: promptTokenIds && [...promptTokenIds] })
    }
    case 'choice-delta': {
      const { type, choice, text, reasoning, toolCalls, ids, logprobs, finishReason, stopReason, wire } = event
      const fields = { ...wire, logprobs: wire?.['logprobs'], token_ids: wire?.['token_ids'] }
      return defined({
        type,
        choice,
        text,
        reasoning,
        toolCalls,
        finishReason,
        stopReason,
        ids: ids && Array.from(ids),
        logprobs: logprobs && Array.from(logprobs),
        wire: wire && defined(fields),
      })
    }
    case 'usage':
    case 'answer-end':
    case 'answer-error':
      return event
  }
}

function defined(fields: object): object {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined))
}

function capture(events: readonly WireEvent[]): ReturnType<TurnCapture['toResponse']> {
  const turn = new TurnCapture()
  for (const event of events) turn.add(event)
  return turn.toResponse()
}

function expectSame(fast: readonly WireEvent[], slow: readonly WireEvent[]): void {
  expect(fast.flatMap(toChunks).map(toPlain)).toEqual(slow.map(toPlain))
  expect(capture(fast)).toEqual(capture(slow))
}

function requestOf(fields: Record<string, unknown>): TurnRequest {
  const value = { model: 'asked', messages: [{ role: 'user', content: 'q' }], ...fields }
  return openaiChat.parseRequest({ text: JSON.stringify(value), value }, context)
}

const context = bareContext(openaiChat.routes[0] as Route)
const VIEWS = [{}, { return_token_ids: true }, { logprobs: true }, { return_token_ids: true, logprobs: true }]

// --- whole answers ----------------------------------------------------------------------------------------------------

async function readWhole(pieces: readonly Buffer[], fast?: FastReading): Promise<WireEvent[]> {
  const response = {
    headers: { 'content-type': 'application/json' },
    body: Object.assign(Readable.from(pieces, { objectMode: true }), {
      text: async () => Buffer.concat(pieces).toString(),
    }),
  } as unknown as Dispatcher.ResponseData
  const reading = { base: 'http://engine', signal: new AbortController().signal, fast }
  const events: WireEvent[] = []
  for await (const batch of readAnswer(response, reading).events) events.push(...batch)
  return events
}

function renderWhole(events: readonly WireEvent[], fields: Record<string, unknown>): unknown {
  const response = capture(events)
  if (response === undefined) return undefined
  const body = openaiChat.renderResponse(requestOf(fields), { response, events }, context)
  return reprint(body instanceof JsonBytes ? body.parse() : body)
}

/** Printing turns -0 into 0, which is equal for all readers. */
function reprint(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value))
}

describe('a whole answer', () => {
  test('is read equally by both readers, in any pieces, also when it is damaged', async () => {
    const cache = new PromptIdCache()
    await fc.assert(
      fc.asyncProperty(anyAnswer, anyDamage, anyCuts, async (answer, changes, places) => {
        const bytes = damage(Buffer.from(answer), changes)
        const slow = await readWhole([bytes])
        const fast = await readWhole(cut(bytes, places), fastReading(cache))
        expectSame(fast, slow)
        for (const view of VIEWS) expect(renderWhole(fast, view)).toEqual(renderWhole(slow, view))
      }),
      { numRuns: runs(300) },
    )
  })

  test('in vLLM’s format is read by the fast reader, and its lists are not parsed', async () => {
    const entry = '{"token":"a\\n","logprob":-0.7877082824707031,"bytes":[97,10],"top_logprobs":[]}'
    const answer =
      `{"id":"x","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a\\n"},` +
      `"logprobs":{"content":[${entry},${entry}]},"finish_reason":"stop","token_ids":[5,6]}],` +
      `"usage":{"prompt_tokens":2,"completion_tokens":2},"prompt_token_ids":[1,2]}`
    const events = await readWhole([Buffer.from(answer)], fastReading())
    expect(events[0]).toHaveProperty('promptTokenBytes')
    expect(events[1]).toHaveProperty('unread')
    expect(capture(events)).toMatchObject({ grade: 'exact' })
  })
})

// --- streams ----------------------------------------------------------------------------------------------------------

const anyStep = fc.record({
  choice: fc.constantFrom('0', '0', '0', '1'),
  delta: fc.oneof(
    { weight: 20, arbitrary: anyText.map((text) => ({ content: text })) },
    anyText.map((text) => ({ reasoning_content: text })),
    anyText.map((text) => ({ role: 'assistant', content: text })),
    { weight: 6, arbitrary: anyText.map((text) => ({ tool_calls: [{ index: 1, function: { arguments: text } }] })) },
    anyText.map((text) => ({ content: text, tool_calls: [{ index: 0, function: { arguments: text } }] })),
    anyText.map((text) => ({ tool_calls: [{ index: 1, id: 'c', function: { name: 'n', arguments: text } }] })),
    fc.constant({}),
  ),
  entries: fc.oneof(
    { weight: 9, arbitrary: fc.array(anyEntry, { minLength: 1, maxLength: 1 }) },
    fc.array(anyEntry, { maxLength: 3 }),
  ),
  ids: fc.oneof(
    { weight: 5, arbitrary: fc.array(fc.nat(150_000), { minLength: 1, maxLength: 1 }) },
    fc.array(anyId, { maxLength: 3 }),
  ),
  finish: mostly(fc.constant('null'), fc.constant('"stop"')),
  // Optional members make another form.
  more: mostly(fc.constant(''), fc.constantFrom(',"stop_reason":null', ',"stop_reason":"x"', ',"usage":null')),
  end: mostly(fc.constant('\n\n'), fc.constantFrom('\r\n\r\n', '\n\n\n', '\n: comment\n\n'), 60),
})

const anyStream = fc
  .record({
    id: fc.constantFrom('chatcmpl-1', 'é', 'a "quoted" id'),
    steps: fc.array(anyStep, { maxLength: 12 }),
    promptIds: fc.option(fc.array(fc.nat(150_000), { maxLength: 1500 })),
    tail: fc.constantFrom(
      'data: [DONE]\n\n',
      'data: [DONE]\n\n',
      '',
      'data: {"error":{"message":"died"}}\n\n',
      'data: [DONE]\n\ndata: {}\n\n',
    ),
    ascii: fc.boolean(),
  })
  .map(({ id, steps, promptIds, tail, ascii }) => {
    const head = `{"id":${print(id, ascii)},"object":"chat.completion.chunk","created":1,"model":"tiny"`
    const ids = promptIds === null ? '' : `,"prompt_token_ids":${JSON.stringify(promptIds)}`
    const first = `data: ${head},"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null}]${ids}}\n\n`
    const chunks = steps.map(
      ({ choice, delta, entries, ids: sampled, finish, more, end }) =>
        `data: ${head},"choices":[{"index":${choice},"delta":${print(delta, ascii)},` +
        `"logprobs":{"content":${printList(entries.map((entry) => printEntry(entry, ascii)))}},` +
        `"finish_reason":${finish},"token_ids":${JSON.stringify(sampled)}${more}}]}${end}`,
    )
    return `${first}${chunks.join('')}${tail}`
  })

function readStream(pieces: readonly Buffer[], fast?: FastReading): WireEvent[] {
  const reader = new ChunkReader({ fast })
  return pieces.flatMap((piece) => reader.push(piece))
}

/** Returns the value of each frame of a stream. */
function renderStream(events: readonly WireEvent[], fields: Record<string, unknown>): unknown[] {
  const renderer = openaiChat.createStreamRenderer(requestOf({ stream: true, ...fields }), context)
  const frames = events.map((event) => renderer.render(event)).join('')
  return frames
    .split('\n\n')
    .map((frame) => (frame.startsWith('data: {') ? reprint(JSON.parse(frame.slice(6))) : frame))
}

describe('a stream', () => {
  test('is read equally by both readers, for every cut, also when it is damaged', () => {
    const cache = new PromptIdCache()
    fc.assert(
      fc.property(anyStream, anyDamage, anyCuts, (stream, changes, places) => {
        const bytes = damage(Buffer.from(stream), changes)
        const slow = readStream([bytes])
        expectSame(readStream([bytes], fastReading(cache)), slow)
        const fast = readStream(cut(bytes, places), fastReading(cache))
        expectSame(fast, slow)
        for (const view of VIEWS) expect(renderStream(fast, view)).toEqual(renderStream(slow, view))
      }),
      { numRuns: runs(300) },
    )
  })

  test('with one token in a chunk is read fast from the second token on, as one delta', () => {
    const chunk = (text: string, id: number): string =>
      `data: {"id":"x","choices":[{"index":0,"delta":{"content":${JSON.stringify(text)}},"logprobs":{"content":` +
      `[{"token":"t","logprob":-0.5,"bytes":[116],"top_logprobs":[]}]},"finish_reason":null,"token_ids":[${id}]}]}\n\n`
    const stream = ['a', 'b', '\n', '"é', 'e'].map(chunk).join('')
    const [start, first, run, ...more] = readStream([Buffer.from(stream)], fastReading())
    expect([start?.type, first?.type, more]).toEqual(['answer-start', 'choice-delta', []])
    expect(first).not.toHaveProperty('run')
    expect(run).toMatchObject({
      choice: 0,
      text: 'b\n"ée',
      ids: Int32Array.of(1, 2, 3, 4),
      logprobs: Float32Array.of(-0.5, -0.5, -0.5, -0.5),
      run: { texts: ['b', '\\n', '\\"é', 'e'] },
    })
  })

  test('with the arguments of a call is read fast, except for the first chunk of the call', () => {
    const chunk = (call: object, id: number): string =>
      `data: {"id":"x","choices":[{"index":0,"delta":${JSON.stringify({ tool_calls: [call] })},"logprobs":{"content":` +
      `[{"token":"t","logprob":-0.5,"bytes":[116],"top_logprobs":[]}]},"finish_reason":null,"token_ids":[${id}]}]}\n\n`
    const begin = { index: 2, id: 'c', type: 'function', function: { name: 'bash', arguments: '{' } }
    const goOn = ['"cmd', '":"ls', '"}'].map((text) => ({ index: 2, function: { arguments: text } }))
    const [, first, second, run, ...more] = readStream(
      [Buffer.from([begin, ...goOn].map(chunk).join(''))],
      fastReading(),
    )
    expect([first, second]).toMatchObject([{ toolCalls: [{ name: 'bash' }] }, { toolCalls: [{ arguments: '"cmd' }] }])
    expect(run).toMatchObject({ toolCalls: [{ index: 2, arguments: '":"ls"}' }], ids: Int32Array.of(2, 3) })
    expect(run).toHaveProperty('run')
    expect(more).toEqual([])
  })

  test('in pieces of one byte and of none is read like the whole', () => {
    fc.assert(
      fc.property(anyStream, (stream) => {
        const bytes = Buffer.from(stream)
        const pieces = Array.from(bytes, (_, i) => [bytes.subarray(i, i + 1), Buffer.alloc(0)]).flat()
        expectSame(readStream(pieces, fastReading()), readStream([bytes]))
      }),
      { numRuns: 20 },
    )
  })

  test('searches bytes without an end once, and keeps a limited number of them', () => {
    const reader = new ChunkReader({ fast: fastReading() })
    const piece = Buffer.alloc(1024 * 1024, 'x')
    expect(() => {
      for (let i = 0; i < 80; i++) reader.push(piece)
    }).toThrow(RangeError)
  })
})
