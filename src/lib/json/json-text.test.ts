import fc from 'fast-check'
import { expect, test } from 'vitest'
import { sortedJson } from './json-text.ts'

test('sortedJson() is equal for the same JSON in another form, and undefined for what is no JSON', () => {
  expect(sortedJson('{"b": [1.0, "\\u0061"], "a": null}')).toBe('{"a":null,"b":[1,"a"]}')
  expect(sortedJson('{"a"')).toBeUndefined()
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      expect(sortedJson(JSON.stringify(value, undefined, 3))).toBe(sortedJson(JSON.stringify(value)))
    }),
  )
})

test('sortedJson() reads no long text that nests deep or holds very many values', () => {
  const [deep, wide] = [`${'['.repeat(50_000)}${']'.repeat(50_000)}`, `[${'1,'.repeat(200_000)}1]`]
  expect([sortedJson(deep), sortedJson(wide)]).toEqual([undefined, undefined])
  const long = JSON.stringify({ content: '['.repeat(1_000_000) })
  expect(sortedJson(long)).toBe(long)
})
