import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { appendMembers, replaceValues } from './json-edit.ts'

const anyBody = fc.dictionary(fc.string(), fc.jsonValue(), { noNullPrototype: true })

describe('replaceValues()', () => {
  test('changes the value at a path and not one byte beside it', () => {
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

  test('finds keys that are written with escapes, and takes the last of two equal ones', () => {
    expect(replaceValues('{"\\u0061":1,"a":2}', [{ path: ['a'], json: '3' }])).toBe('{"\\u0061":1,"a":3}')
    expect(replaceValues('{"b":1,"\\u0061":2}', [{ path: ['a'], json: '3' }])).toBe('{"b":1,"\\u0061":3}')
  })

  test('throws for a place that does not exist', () => {
    expect(() => replaceValues('{"a":[1]}', [{ path: ['a', 1], json: '2' }])).toThrow(RangeError)
    expect(() => replaceValues('{"a":[1]}', [{ path: ['b'], json: '2' }])).toThrow(RangeError)
  })
})

describe('appendMembers()', () => {
  test('wins over members of the same name and keeps the rest of the text', () => {
    fc.assert(
      fc.property(anyBody, anyBody, fc.constantFrom('', ' ', '\n'), (body, members, space) => {
        const text = `${space}${JSON.stringify(body)}${space}`
        const parsed = JSON.parse(appendMembers(text, members))
        expect(parsed).toEqual(JSON.parse(JSON.stringify({ ...body, ...members })))
      }),
    )
  })
})
