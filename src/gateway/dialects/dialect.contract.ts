import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { SseParser } from '../../lib/net/sse.ts'
import { FailureCode, RolloutError } from '../../model/failure.ts'
import type { StreamEvent } from '../../model/stream-event.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { TurnCapture } from '../capture/capture-turn.ts'
import { createTextSealer } from '../sessions/text-sealer.ts'
import type { Dialect, RequestContext } from './dialect.ts'

/** An answer as a client reads it, in a form common to all APIs. */
export interface ReadAnswer {
  text: string
  reasoning: string
  calls: { name: string; arguments: unknown }[]
  /** Undefined until the answer has ended. */
  finished?: 'stop' | 'length' | 'tool-calls'
}

export interface DialectSubject {
  dialect: Dialect
  /** The smallest valid body, with or without a stream. */
  body: (stream: boolean) => { value: unknown; routePath: string; query?: string }
  /** Reads the events of a stream (their `data`) as a client would. */
  readStream: (data: readonly string[]) => ReadAnswer
  readWhole: (body: unknown) => ReadAnswer
  /** The answer in the body of the next request. */
  echo: (whole: unknown, stream: boolean) => unknown
  /** Whether this API sends reasoning text without a request for it. */
  showsReasoning: boolean
}

/** The value after one printing: -0 becomes 0. */
const anyJson = fc.jsonValue().map((value) => JSON.parse(JSON.stringify(value)) as unknown)

/** An answer that a model might sample in one turn. */
const anyAnswer = fc.record({
  reasoning: fc.option(
    fc.string({ unit: 'grapheme', minLength: 1 }).filter((text) => text.trim() !== ''),
    { nil: undefined },
  ),
  text: fc.string({ unit: 'grapheme' }).filter((text) => text === '' || text.trim() !== ''),
  calls: fc.array(
    fc.record({
      name: fc.constantFrom('bash', 'read_file'),
      arguments: fc.dictionary(
        fc.string({ minLength: 1 }).filter((key) => key !== '__proto__'),
        anyJson,
        { maxKeys: 3, noNullPrototype: true },
      ),
    }),
    { maxLength: 3 },
  ),
  cuts: fc.array(fc.integer({ min: 1, max: 7 }), { minLength: 1, maxLength: 10 }),
})
type AnyAnswer = typeof anyAnswer extends fc.Arbitrary<infer T> ? T : never

/** The answer as events, its texts cut into pieces of the given sizes. */
function eventsOf({ reasoning, text, calls, cuts }: AnyAnswer): StreamEvent[] {
  let turn = 0
  const pieces = (whole: string): string[] => {
    const result: string[] = []
    for (let at = 0; at < whole.length; at += result.at(-1)!.length)
      result.push(whole.slice(at, at + (cuts[turn++ % cuts.length] as number)))
    return result
  }
  const ids = { ids: Int32Array.of(5), logprobs: Float32Array.of(-1) }
  const deltas: StreamEvent[] = [
    ...pieces(reasoning ?? '').map((piece): StreamEvent => ({
      type: 'choice-delta',
      choice: 0,
      reasoning: piece,
      ...ids,
    })),
    ...pieces(text).map((piece): StreamEvent => ({ type: 'choice-delta', choice: 0, text: piece, ...ids })),
    ...calls.flatMap((call, index): StreamEvent[] => [
      {
        type: 'choice-delta',
        choice: 0,
        toolCalls: [{ index, id: `call_${index}`, name: call.name, arguments: '' }],
        ...ids,
      },
      ...pieces(JSON.stringify(call.arguments)).map((piece): StreamEvent => ({
        type: 'choice-delta',
        choice: 0,
        toolCalls: [{ index, arguments: piece }],
        ...ids,
      })),
    ]),
    {
      type: 'choice-delta',
      choice: 0,
      finishReason: calls.length > 0 ? 'tool-calls' : 'stop',
      ids: Int32Array.of(2),
      logprobs: Float32Array.of(-1),
    },
  ]
  return [
    { type: 'answer-start', id: 'chatcmpl-7', model: 'served', created: 1, promptTokenIds: Int32Array.of(1, 2, 3) },
    ...deltas,
    { type: 'usage', usage: { promptTokens: 3, completionTokens: deltas.length } },
    { type: 'answer-end' },
  ]
}

/** The suite every dialect passes. */
export function describeDialect(subject: DialectSubject): void {
  const { dialect } = subject

  function prepare(stream: boolean): { request: TurnRequest; context: RequestContext } {
    const { value, routePath, query = '' } = subject.body(stream)
    const route = dialect.routes.find(({ path }) => path === routePath)
    if (route === undefined) throw new Error(`no route ${routePath}`)
    const wildcards = routePath
      .split('*')
      .slice(1)
      .map(() => 'm')
    const context: RequestContext = {
      route,
      wildcards,
      query: new URLSearchParams(query),
      headers: {},
      recall: () => undefined,
      sealer: createTextSealer('k'),
    }
    return { request: dialect.parseRequest({ text: JSON.stringify(value), value }, context), context }
  }

  function streamed(events: readonly StreamEvent[], keepAlives = false): string[] {
    const { request, context } = prepare(true)
    const renderer = dialect.createStreamRenderer(request, context)
    const text = events.map((event) => (keepAlives ? renderer.keepAlive() : '') + renderer.render(event)).join('')
    return new SseParser().push(new TextEncoder().encode(text)).map((message) => message.data)
  }

  function whole(events: readonly StreamEvent[]): unknown {
    const { request, context } = prepare(false)
    const capture = new TurnCapture()
    for (const event of events) capture.add(event)
    const response = capture.toResponse()
    if (response === undefined) throw new Error('nothing was captured')
    // An engine of another wire: the events have no wire fields.
    return JSON.parse(
      JSON.stringify(dialect.renderResponse(request, { response, events: capture.toEvents() }, context)),
    )
  }

  function expected(answer: AnyAnswer): ReadAnswer {
    return {
      text: answer.text,
      reasoning: subject.showsReasoning ? (answer.reasoning ?? '') : '',
      calls: answer.calls,
      finished: answer.calls.length > 0 ? 'tool-calls' : 'stop',
    }
  }

  describe(`${dialect.id}: the contract of dialects`, () => {
    test('a stream is read as the sampled answer, for every cut, with and without keep-alives', () => {
      fc.assert(
        fc.property(anyAnswer, fc.boolean(), (answer, keepAlives) => {
          expect(subject.readStream(streamed(eventsOf(answer), keepAlives))).toEqual(expected(answer))
        }),
      )
    })

    test('a whole answer is read as the sampled answer', () => {
      fc.assert(
        fc.property(anyAnswer, (answer) => {
          expect(subject.readWhole(whole(eventsOf(answer)))).toEqual(expected(answer))
        }),
      )
    })

    test('an answer that a client parses, prints and returns is the same turn: text, reasoning, names, arguments', () => {
      fc.assert(
        fc.property(anyAnswer, (answer) => {
          fc.pre(answer.text !== '' || answer.calls.length > 0)
          const value = JSON.parse(JSON.stringify(subject.echo(whole(eventsOf(answer)), false))) as unknown
          const { context } = prepare(false)
          const { messages } = dialect.parseRequest({ text: JSON.stringify(value), value }, context)
          const echoed = messages.filter((message) => message.role === 'assistant')
          expect(echoed).toHaveLength(1)
          const [message] = echoed
          expect(message?.content.map((part) => (part.type === 'text' ? part.text : '')).join('')).toBe(answer.text)
          expect(message?.reasoning ?? '').toBe(answer.reasoning ?? '')
          expect(
            message?.toolCalls.map((call) => ({ name: call.name, arguments: JSON.parse(call.arguments) as unknown })),
          ).toEqual(answer.calls)
        }),
      )
    })

    test('the same events give the same bytes', () => {
      fc.assert(
        fc.property(anyAnswer, (answer) => {
          expect(streamed(eventsOf(answer))).toEqual(streamed(eventsOf(answer)))
        }),
        { numRuns: 20 },
      )
    })

    test('parseRequest() parses or rejects 1,000 hostile bodies, and throws nothing else', () => {
      const { value, routePath } = subject.body(true)
      const route = dialect.routes.find(({ path }) => path === routePath)!
      const context = { ...prepare(true).context, route }
      const keys = Object.keys(value as object)
      fc.assert(
        fc.property(fc.jsonValue(), fc.constantFrom(...keys), fc.string(), (hostile, key, other) => {
          for (const body of [
            hostile,
            { ...(value as object), [key]: hostile },
            { ...(value as object), [other]: hostile },
          ]) {
            try {
              dialect.parseRequest({ text: JSON.stringify(body), value: JSON.parse(JSON.stringify(body)) }, context)
            } catch (error) {
              expect(error).toBeInstanceOf(RolloutError)
              expect((error as RolloutError).code).toBe('request.malformed')
            }
          }
        }),
        { numRuns: 334 },
      )
    })

    test('parseRequest() stops at the first invalid element of a list', () => {
      const { value } = subject.body(true)
      const { context } = prepare(true)
      const lists = Object.entries(value as object).filter(([, list]) => Array.isArray(list))
      expect(lists.length).toBeGreaterThan(0)
      for (const [name, list] of lists as [string, unknown[]][]) {
        let reads = 0
        const read = (): never[] => {
          reads += 1
          return []
        }
        const watched = new Proxy({}, { get: read, ownKeys: read })
        const body = { ...(value as object), [name]: [...list, 1, watched, watched] }
        expect(() => dialect.parseRequest({ text: '', value: body }, context), name).toThrow(RolloutError)
        expect(reads, name).toBe(0)
      }
    })

    test('every failure has a status of its class and a body with its message', () => {
      for (const code of FailureCode.options) {
        const { failure } = new RolloutError(code, 'what happened')
        const rendered = dialect.renderError(failure)
        expect(rendered.status, code).toBeGreaterThanOrEqual(400)
        // A harness does not retry after its own errors, and retries after errors of the service; 529 is Anthropic's 503.
        expect(Math.floor(rendered.status / 100), code).toBe(Math.floor(failure.status / 100))
        expect(JSON.stringify(rendered.body)).toContain('what happened')
      }
      const limited = new RolloutError('upstream.rate-limited', 'wait', { retryAfterSeconds: 7 }).failure
      expect(JSON.stringify([dialect.renderError(limited).headers, dialect.renderError(limited).body])).toContain('7')
    })
  })
}
