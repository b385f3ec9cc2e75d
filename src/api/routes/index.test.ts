import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { anyAnswerOf, type AnyCall, anyCallOf } from '../../../test/support/any-of-route.ts'
import { createClientOf } from '../../client/client.ts'
import { RolloutError } from '../../model/failure.ts'
import { ErrorBody } from '../error-body.ts'
import { type Handlers, mountRoutes } from '../mount.ts'
import { readAll } from '../limit-stream.ts'
import type { Route } from '../route.ts'
import { type Routes, routes } from './index.ts'
import { anyCodePoint } from '../../../test/support/any-code-point.ts'

const all = Object.entries(routes) as [keyof Routes, Route][]

/** One call of a route: the handler's input and its reply. */
interface Exchange {
  seen: { params: unknown; query: unknown; body: unknown }[]
  answer: unknown
  /** The handler responds with request.not-found. */
  isEmpty?: boolean
}

/** A server whose handlers record their input and return a given reply. */
function createEcho(exchange: Exchange) {
  const handlers = Object.fromEntries(
    all.map(([name, route]) => [
      name,
      async ({ params, query, body }: Exchange['seen'][number]) => {
        if (exchange.isEmpty) throw new RolloutError('request.not-found', 'There is nothing here.')
        exchange.seen.push({ params, query, body: await readBody(route, body) })
        return toReply(route, exchange.answer)
      },
    ]),
  ) as unknown as Handlers<Routes, undefined>
  const bugs: unknown[] = []
  const app = mountRoutes({
    table: routes,
    handlers,
    authorize: () => undefined,
    onBug: (error) => bugs.push(error),
    checkAnswers: true,
  })
  return { app, bugs }
}

/** Parses a raw body with the schema, as its handler does. */
async function readBody(route: Route, body: unknown): Promise<unknown> {
  if (body instanceof ReadableStream) return new Uint8Array(await readAll(body))
  return route.body?.kind === 'json' && route.body.isRaw ? route.body.schema.parse(JSON.parse(String(body))) : body
}

function toReply(route: Route, answer: unknown): unknown {
  switch (route.answer.kind) {
    case 'json':
      return answer
    case 'ndjson':
      return listOf(answer)
    case 'sse':
      return listOf({ id: '1-1', data: answer })
    case 'bytes':
      return { stream: new Blob([answer as Uint8Array<ArrayBuffer>]).stream() }
  }
}

async function* listOf<T>(...items: T[]): AsyncGenerator<T> {
  yield* items
}

async function firstOf(result: unknown): Promise<unknown> {
  if (result instanceof Promise) {
    const value: unknown = await result
    return value instanceof ReadableStream ? new Uint8Array(await readAll(value)) : value
  }
  for await (const item of result as AsyncIterable<unknown>) return item
  throw new Error('the stream was empty')
}

const RUNS = 12

describe('every route', () => {
  test.each(all)(
    '%s: the handler gets what the client sends, and the client what the handler returns',
    async (name, route) => {
      const exchange: Exchange = { seen: [], answer: undefined }
      const { app, bugs } = createEcho(exchange)
      const client = createClientOf(routes, {
        baseUrl: 'http://polar.test',
        fetch: async (request) => app.fetch(request),
      })
      const call = client[name] as (input: unknown) => unknown
      await fc.assert(
        fc.asyncProperty(anyCallOf(route), anyAnswerOf(route), async (input, answer) => {
          Object.assign(exchange, { seen: [], answer })
          const received = await firstOf(call(input))
          expect(bugs).toEqual([])
          expect(exchange.seen).toEqual([
            {
              params: route.params?.parse(input.params) ?? {},
              query: route.query?.parse(input.query) ?? {},
              body: route.body?.kind === 'json' ? route.body.schema.parse(input.body) : input.body,
            },
          ])
          if (route.answer.kind === 'bytes') expect(received).toEqual(answer)
          else if (route.answer.kind === 'sse')
            expect(received).toEqual({ id: '1-1', data: route.answer.schema.parse(answer) })
          else expect(received).toEqual(route.answer.schema.parse(answer))
        }),
        { numRuns: RUNS },
      )
    },
  )

  test.each(all)('%s: a malformed request never causes a 500', async (_, route) => {
    const { app, bugs } = createEcho({ seen: [], answer: undefined, isEmpty: true })
    const anyPath = fc
      .tuple(fc.string({ unit: anyCodePoint, maxLength: 20 }), fc.boolean())
      .map(([text, isRaw]) => (isRaw ? text.replaceAll(/[\s/?#\\]/g, '%') : encodeURIComponent(text.toWellFormed())))
    const anyBody = fc.oneof(
      fc.json({ maxDepth: 3 }),
      fc.string(),
      fc.constantFrom('', '{', 'null', '[]', '{"__proto__":1}', '['.repeat(9000), '{"task_id":"\\ud800"}', '1e999'),
      anyCallOf(route).chain(({ body }) => spoil(body)),
    )
    await fc.assert(
      fc.asyncProperty(anyPath, fc.webQueryParameters(), anyBody, async (part, search, body) => {
        const path = `${route.path.replaceAll(/\{\w+\}/g, part || 'x')}?unheard_of=1&${search}`
        const hasBody = route.method !== 'get'
        const init = { method: route.method.toUpperCase(), headers: { 'content-type': 'application/json' } }
        const response = await app.request(path, hasBody ? { ...init, body } : init)
        expect(bugs).toEqual([])
        expect(response.status).toBeGreaterThanOrEqual(400)
        expect(response.status).toBeLessThan(500)
        ErrorBody.parse(await response.json())
      }),
      { numRuns: RUNS * 3 },
    )
  })

  test.each(all.filter(([, { origin }]) => origin === 'polar'))(
    '%s: a key that it does not know is named',
    async (_, route) => {
      const { app } = createEcho({ seen: [], answer: undefined, isEmpty: true })
      const [{ body }] = fc.sample(anyCallOf(route), 1) as [AnyCall]
      const path = route.path.replaceAll(/\{\w+\}/g, '7')
      const ask = async (search: string, sent: unknown): Promise<unknown> => {
        const init = { method: route.method.toUpperCase(), headers: { 'content-type': 'application/json' } }
        const hasBody = route.body?.kind === 'json'
        return (await app.request(path + search, hasBody ? { ...init, body: JSON.stringify(sent) } : init)).json()
      }
      if (route.query)
        expect(await ask('?unheard_of=1', body)).toMatchObject({ detail: expect.arrayContaining([unheardOf('query')]) })
      if (route.body?.kind === 'json') {
        const answer = await ask('', { ...(body as object), unheard_of: 1 })
        expect(answer).toMatchObject({ detail: expect.arrayContaining([unheardOf('body')]) })
      }
    },
  )

  test.each(all)('%s: its examples match its schemas', (_, route) => {
    const { body, answer } = route.examples ?? {}
    if (body !== undefined && route.body?.kind === 'json') route.body.schema.parse(body)
    if (answer !== undefined && route.answer.kind !== 'bytes') {
      expect(route.answer.schema.parse(answer)).toMatchObject(answer as object)
    }
  })

  test('each path and method is unique, and parameters match the path', () => {
    const places = all.map(([, { method, path }]) => `${method} ${path}`)
    expect(new Set(places).size).toBe(places.length)
    for (const [name, { path, params }] of all) {
      const names = [...path.matchAll(/\{(\w+)\}/g)].map(([, param]) => param)
      expect(Object.keys(params?.shape ?? {}), name).toEqual(names)
    }
  })
})

function unheardOf(where: string) {
  return { loc: [where, 'unheard_of'], msg: 'unknown field', type: 'extra_forbidden' }
}

/** A valid body with one invalid value. */
function spoil(body: unknown): fc.Arbitrary<string> {
  const text = JSON.stringify(body) ?? ''
  return fc.oneof(
    fc.nat(text.length).map((end) => text.slice(0, end)),
    fc
      .constantFrom('null', '-1', '""', '[[]]', '{"a":{}}', '1e400')
      .map((junk) => text.replace(/"[^"]*"(?=[,}\]])|\d+/, junk)),
    fc.constant(text.replace('{', '{"unheard_of":1,')),
  )
}
