import fc from 'fast-check'
import { expect, test } from 'vitest'
import { JsonMemory } from './json-memory.ts'
import { runs } from '../../../test/support/runs.ts'

const LONG = 'x'.repeat(1500)

/** Texts of one conversation: a list that mostly grows, between members that mostly stay, in any layout. */
const anyTexts = fc
  .record({
    before: fc.dictionary(fc.constantFrom('model', 'system', '__proto__', 'é"'), fc.jsonValue(), {
      noNullPrototype: true,
    }),
    after: fc.dictionary(fc.constantFrom('tools', 'n', 'model'), fc.jsonValue(), { noNullPrototype: true }),
    steps: fc.array(
      fc.record({
        add: fc.array(fc.jsonValue(), { maxLength: 3 }),
        drop: fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, fc.nat(4)),
        tail: fc.option(fc.jsonValue(), { freq: 5 }),
        indent: fc.constantFrom(0, 0, 0, 1),
        spoil: fc.option(fc.record({ at: fc.nat(), put: fc.constantFrom('', ',', ']', '}', ' ', '"', '0') }), {
          freq: 5,
        }),
      }),
      { minLength: 1, maxLength: 8 },
    ),
  })
  .map(({ before, after, steps }) => {
    let list: unknown[] = []
    return steps.map(({ add, drop, tail, indent, spoil }) => {
      list = [...list.slice(0, Math.max(0, list.length - drop)), ...add]
      const more = tail === null ? after : { ...after, tail }
      const text = JSON.stringify({ first: LONG, ...before, messages: list, ...more }, null, indent)
      if (spoil === null) return text
      const at = LONG.length + (spoil.at % (text.length - LONG.length))
      return text.slice(0, at) + spoil.put + text.slice(at + 1)
    })
  })

function parsed(parse: () => unknown): unknown {
  try {
    return { value: parse() }
  } catch (error) {
    return { error: (error as Error).message }
  }
}

test('JsonMemory returns or throws the same as JSON.parse, whatever was parsed before', () => {
  fc.assert(
    fc.property(anyTexts, (texts) => {
      const memory = new JsonMemory()
      for (const text of texts) {
        const own = parsed(() => memory.parse(text).value)
        expect(own).toEqual(parsed(() => JSON.parse(text)))
        // The same order of members too, which equality does not look at.
        expect(JSON.stringify(own)).toBe(JSON.stringify(parsed(() => JSON.parse(text))))
      }
    }),
    { numRuns: runs(600) },
  )
})

test('JsonMemory shares repeated objects, and parses only added elements', () => {
  const memory = new JsonMemory()
  const body = (count: number): string =>
    JSON.stringify({
      model: 'm',
      messages: Array.from({ length: count }, (_, i) => ({ i, text: LONG })),
      tools: [{ a: 1 }],
    })
  const first = memory.parse(body(3)).value as { messages: object[]; tools: object }
  const { value, added } = memory.parse(body(5))
  const second = value as typeof first
  expect(second.messages.slice(0, 2)).toEqual(first.messages.slice(0, 2))
  expect(second.messages[0]).toBe(first.messages[0])
  expect(second.messages[1]).toBe(first.messages[1])
  expect(second.tools).toBe(first.tools)
  expect(added).toHaveLength(3)
})

test('JsonMemory uses JSON.parse for a list with a duplicate name', () => {
  const memory = new JsonMemory()
  const text = (id: number): string => `{"a":[1,2,"${LONG}",${id}],"a":[3,4,"${LONG}",5]}`
  expect(memory.parse(text(1)).value).toEqual(JSON.parse(text(1)))
  expect(memory.parse(text(2)).value).toEqual(JSON.parse(text(2)))
})

test('JsonMemory keeps interleaved conversations', () => {
  const memory = new JsonMemory()
  const body = (name: string, count: number): string =>
    JSON.stringify({ name, messages: Array.from({ length: count }, () => name + LONG) })
  for (const name of ['a', 'b', 'c']) memory.parse(body(name, 2))
  for (const name of ['a', 'b', 'c']) expect(memory.parse(body(name, 3)).added).toHaveLength(2)
})
