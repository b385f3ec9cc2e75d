import type { IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import { expect, test } from 'vitest'
import { JsonMemory } from '../../lib/json/json-memory.ts'
import { BodyBudget, DEFAULT_BUDGET } from './body-budget.ts'
import { readJsonBody } from './read-body.ts'

const HELD = new BodyBudget(DEFAULT_BUDGET).open('session', new AbortController().signal)
const LIMITS = { maxBytes: 100_000, maxDepth: 6, maxValues: 1000 }

function requestOf(pieces: Iterable<Buffer>, headers: Record<string, string> = {}): IncomingMessage {
  return Object.assign(Readable.from(pieces), { headers }) as unknown as IncomingMessage
}

function bodyOf(messages: readonly unknown[]): Buffer {
  return Buffer.from(JSON.stringify({ model: 'm', messages: ['x'.repeat(2000), ...messages], tools: [] }))
}

function nested(depth: number): unknown {
  return depth === 0 ? 1 : [nested(depth - 1)]
}

test('readJsonBody() rejects a body that is too deep again when it is repeated or extended', async () => {
  const memory = new JsonMemory()
  const read = (messages: unknown[]): Promise<unknown> =>
    readJsonBody(requestOf([bodyOf(messages)]), LIMITS, memory, HELD)
  await expect(read([nested(4), 'a'])).resolves.toMatchObject({ value: { model: 'm' } })
  await expect(read([nested(4), 'a', nested(4)])).resolves.toMatchObject({ value: { model: 'm' } })
  const deep = [nested(4), 'a', nested(5), 'b']
  await expect(read(deep)).rejects.toThrow('nested deeper than 6')
  await expect(read(deep)).rejects.toThrow('nested deeper than 6')
  await expect(read([...deep, 'c', 'd'])).rejects.toThrow('nested deeper than 6')
})

test('readJsonBody() rejects a body that is too large, with and without content-length', async () => {
  const pieces = Array.from({ length: 11 }, () => Buffer.alloc(10_000, ' '))
  await expect(readJsonBody(requestOf(pieces), LIMITS, new JsonMemory(), HELD)).rejects.toThrow('100000')
  const stated = requestOf([], { 'content-length': '100001' })
  await expect(readJsonBody(stated, LIMITS, new JsonMemory(), HELD)).rejects.toThrow('100000')
})

test('readJsonBody() reports a connection that closes within the body as client-gone', async () => {
  const request = requestOf([])
  const reading = readJsonBody(request, LIMITS, new JsonMemory(), HELD)
  ;(request as unknown as Readable).destroy()
  await expect(reading).rejects.toMatchObject({ failure: { code: 'request.client-gone' } })
})

test('readJsonBody() rejects a body with too many values before it parses the body', async () => {
  const read = (text: string): Promise<unknown> =>
    readJsonBody(requestOf([Buffer.from(text)]), LIMITS, new JsonMemory(), HELD)
  await expect(read(`{"a":[${'1,'.repeat(1100)}1]}`)).rejects.toThrow('more than 1000 values')
  await expect(read(`{"a":[${'[1],'.repeat(1100)}[1]]}`)).rejects.toThrow('more than 1000 values')
  // Neither is JSON; the text must not be parsed to find out.
  await expect(read(`{"a":[${'1,'.repeat(1100)}`)).rejects.toThrow('more than 1000 values')
  const text = ','.repeat(2500)
  await expect(read(JSON.stringify({ text, quoted: `"${text}\\` }))).resolves.toMatchObject({ value: { text } })
})

test('readJsonBody() rejects a long body that is too deep before it parses the body', async () => {
  const limits = { ...LIMITS, maxBytes: 1_000_000 }
  const read = (text: string): Promise<unknown> =>
    readJsonBody(requestOf([Buffer.from(text)]), limits, new JsonMemory(), HELD)
  // Not JSON: the text must not be parsed to find out how deep it is.
  await expect(read('['.repeat(500_000))).rejects.toThrow('nested deeper than 6')
  await expect(read('{"a":'.repeat(100_000))).rejects.toThrow('nested deeper than 6')
  const text = '[['.repeat(200_000)
  await expect(read(JSON.stringify({ text }))).resolves.toMatchObject({ value: { text } })
})
