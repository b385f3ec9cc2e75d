import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { replaceValues, setMembers } from './json-edit.ts'

const anyBody = fc.dictionary(fc.string(), fc.jsonValue(), { noNullPrototype: true })

describe('replaceValues()', () => {
  test('changes only the bytes of the value at a path', () => {
    const text = '{ "a": 1.0, "m": [ {"role":"developer","x":12345678901234567890}, "}\\"]" ] , "é\\n": 1e3 }'
    expect(replaceValues(text, [{ path: ['m', 0, 'role'], json: '"system"' }])).toBe(
      text.replace('"developer"', '"system"'),
    )
  })

  test('equals editing the parsed value, for any JSON in any layout', () => {
    fc.assert(
      fc.property(anyBody, fc.string(), fc.jsonValue(), fc.constantFrom(0, 2), (body, key, value, indent) => {
        const text = JSON.stringify({ ...body, [key]: [body, null] }, null, indent)
        const edited = replaceValues(text, [{ path: [key, 1], json: JSON.stringify(value) }])
        const expected = JSON.parse(text)
        expected[key][1] = value
        expect(JSON.parse(edited)).toEqual(JSON.parse(JSON.stringify(expected)))
      }),
    )
  })

  test('finds keys with escapes, and the last of two equal keys', () => {
    expect(replaceValues('{"\\u0061":1,"a":2}', [{ path: ['a'], json: '3' }])).toBe('{"\\u0061":1,"a":3}')
    expect(replaceValues('{"b":1,"\\u0061":2}', [{ path: ['a'], json: '3' }])).toBe('{"b":1,"\\u0061":3}')
  })

  test('throws for a path that does not exist', () => {
    expect(() => replaceValues('{"a":[1]}', [{ path: ['a', 1], json: '2' }])).toThrow(RangeError)
    expect(() => replaceValues('{"a":[1]}', [{ path: ['b'], json: '2' }])).toThrow(RangeError)
  })
})

describe('setMembers()', () => {
  test('replaces members of the same name, and keeps the rest of the text', () => {
    fc.assert(
      fc.property(anyBody, anyBody, fc.constantFrom('', ' ', '\n'), fc.boolean(), (body, members, space, overlap) => {
        const wanted = overlap
          ? { ...members, ...Object.fromEntries(Object.keys(body).map((key) => [key, 1])) }
          : members
        const text = `${space}${JSON.stringify(body, null, space)}${space}`
        const edited = setMembers(text, wanted)
        expect(JSON.parse(edited)).toEqual(JSON.parse(JSON.stringify({ ...body, ...wanted })))
        expect(edited.startsWith(space) && edited.endsWith(`}${space}`)).toBe(true)
      }),
    )
  })

  test('creates no duplicate names and changes no other member', () => {
    const text = '{"model": "a", "x": 1.0, "stream" :true, "messages": [{"model": "inner"}]}'
    expect(setMembers(text, { stream: false, model: 'b', n: 2, absent: undefined })).toBe(
      '{"model": "b", "x": 1.0, "stream" :false, "messages": [{"model": "inner"}],"n":2}',
    )
    expect(setMembers('{ }', { a: null })).toBe('{ "a":null}')
    expect(setMembers('{"\\u0061":1,"b":2}', { a: 3 })).toBe('{"\\u0061":3,"b":2}')
  })
})
