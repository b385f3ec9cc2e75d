import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Stack } from '../support/stack.ts'
import { runs } from '../support/runs.ts'

let stack: Stack
beforeAll(async () => {
  stack = await Stack.start({ script: 'default: { text: fine }' })
})
afterAll(() => stack[Symbol.asyncDispose]())

async function send(
  method: string,
  path: string,
  body?: string,
  headers: Record<string, string> = {},
): Promise<{ status: number; text: string }> {
  const response = await fetch(stack.session.baseUrl + path, {
    method,
    body,
    headers: { authorization: `Bearer ${stack.session.key}`, 'content-type': 'application/json', ...headers },
  })
  return { status: response.status, text: await response.text() }
}

const anthropic = { 'anthropic-version': '2023-06-01' }
const google = { contents: [{ role: 'user', parts: [{ text: 'hi' }] }] }

describe('routes without generation', () => {
  test('token counts and model lists work in each API, unknown paths are rejected, and no turn is recorded', async () => {
    await using quiet = await Stack.start({ script: 'default: { text: fine }' })
    const loud = stack
    stack = quiet
    try {
      const message = { role: 'user', content: 'hi' }
      const good: [string, string, unknown?, Record<string, string>?][] = [
        ['POST', '/v1/messages/count_tokens', { model: 'tiny', messages: [message] }, anthropic],
        ['POST', '/v1/responses/input_tokens', { model: 'tiny', input: 'hi' }],
        ['POST', '/v1beta/models/tiny:countTokens', google],
        ['GET', '/v1/models'],
        ['GET', '/v1/models/tiny'],
        ['GET', '/v1/models', undefined, anthropic],
        ['GET', '/v1beta/models'],
        ['GET', '/v1beta/models/tiny'],
      ]
      for (const [method, path, body, headers] of good) {
        const answer = await send(method, path, body === undefined ? undefined : JSON.stringify(body), headers)
        expect(answer.status, `${path}: ${answer.text}`).toBe(200)
        if (/count|input_tokens/.test(path))
          expect(answer.text).toMatch(/"(total_?[tT]okens|input_tokens)":\s*([5-9]|\d\d+)/)
        else expect(answer.text).toContain('tiny')
      }
      const typos: [string, string, Record<string, string>?][] = [
        ['POST', '/v1/message'],
        ['POST', '/v1/messages/batches', anthropic],
        ['POST', '/v1/embeddings'],
        ['POST', '/v1/completions'],
        ['POST', '/v1/responses/x/cancel'],
        ['POST', '/v1beta/models/tiny:embedContent'],
        ['POST', '/v1beta/models/tiny:generatecontent'],
        ['GET', '/v1/models/other'],
      ]
      for (const [method, path, headers] of typos) {
        const answer = await send(method, path, method === 'POST' ? '{}' : undefined, headers)
        expect([404, 405], path).toContain(answer.status)
        expect(JSON.parse(answer.text)).toHaveProperty('error')
      }
      expect((await quiet.recorded()).turns).toEqual([])
    } finally {
      stack = loud
    }
  })
})

describe('hostile bodies over HTTP', () => {
  const count = runs(300)
  const apis: [string, string, object, Record<string, string>][] = [
    [
      'openai chat',
      '/v1/chat/completions',
      { model: 'tiny', messages: [{ role: 'user', content: 'hi' }], stream: true },
      {},
    ],
    ['openai responses', '/v1/responses', { model: 'tiny', input: 'hi', stream: true }, {}],
    [
      'anthropic',
      '/v1/messages',
      { model: 'tiny', max_tokens: 9, messages: [{ role: 'user', content: 'hi' }] },
      anthropic,
    ],
    ['google', '/v1beta/models/tiny:generateContent', { ...google, generationConfig: { maxOutputTokens: 9 } }, {}],
  ]

  test.each(apis)('%s: never returns 5xx, and answers a valid request afterwards', async (_, path, good, headers) => {
    const keys = Object.keys(good)
    const statuses = new Map<number, number>()
    await fc.assert(
      fc.asyncProperty(
        fc.jsonValue({ maxDepth: 6 }),
        fc.constantFrom(...keys),
        fc.string(),
        fc.nat(3),
        async (hostile, key, text, kind) => {
          const bodies = [
            JSON.stringify(hostile),
            text,
            JSON.stringify({ ...good, [key]: hostile }),
            JSON.stringify({ ...good, [text]: hostile }),
          ]
          const { status } = await send('POST', path, bodies[kind], headers)
          statuses.set(status, (statuses.get(status) ?? 0) + 1)
          expect(status).toBeLessThan(500)
        },
      ),
      { numRuns: count },
    )
    expect(statuses.get(400)).toBeGreaterThan(0.3 * count)
    expect((await send('POST', path, JSON.stringify(good), headers)).status).toBe(200)
  })
})
