import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { keepShape, type JsonShape } from './json-shape.ts'

const any: JsonShape = { kind: 'any' }
const scalar: JsonShape = { kind: 'scalar' }
const list = (items: JsonShape): JsonShape => ({ kind: 'list', items })
const object = (members: Record<string, JsonShape>): JsonShape => ({ kind: 'object', members })

const shape = object({
  a: scalar,
  b: object({ c: scalar, d: any }),
  l: list({
    kind: 'tagged',
    variants: { x: object({ type: scalar, v: scalar }) },
    instead: () => '{"type":"none"}',
  }),
  t: list({ kind: 'tagged', variants: { x: object({ type: scalar, v: scalar }) } }),
  s: { kind: 'either', of: [scalar, list(scalar)] },
  flag: { kind: 'scalar', accepts: (value) => typeof value === 'boolean' },
})

function kept(text: string): { text: string; dropped: string[] } {
  return keepShape(text, JSON.parse(text), shape)
}

describe('keepShape()', () => {
  test('returns a text that fits unchanged', () => {
    const text = ' { "a" : 1.0, "b":{"c":12345678901234567890,"d":{"any":[1]}} , "l":[{"type":"x","v":"é\\u00e9"}]}'
    expect(kept(text)).toEqual({ text, dropped: [] })
  })

  test('keeps the bytes of kept values, and lists the paths of dropped values', () => {
    const text = '{"z":{"a":1},"a": 1.0,"b":{"c":1e3,"e":"}","d":[ 1 ]},"s":[1,{"x":1}],"flag":"yes"}'
    expect(kept(text)).toEqual({
      text: '{"a": 1.0,"b":{"c":1e3,"d":[ 1 ]},"s":[1]}',
      dropped: ['z', 'b.e', 's[]', 'flag'],
    })
  })

  test('replaces or drops an element of an unknown type', () => {
    expect(kept('{"l":[{"type":"y","v":1},{"type":"x","v":2,"w":3},{"v":4}],"t":[{"type":"y"},{"type":"x"}]}')).toEqual(
      {
        text: '{"l":[{"type":"none"},{"type":"x","v":2},{"type":"none"}],"t":[{"type":"x"}]}',
        dropped: ['l[]{y}', 'l[].w', 'l[]{no type}', 't[]{y}'],
      },
    )
  })

  test('keeps a member that occurs twice once, with its last value, whatever its key is written with', () => {
    expect(kept('{"a":1,"b":{"c":1},"\\u0061":2,"b":{"c":3}}').text).toBe('{"a":2,"b":{"c":3}}')
    expect(kept('{"l":{"x":1},"l":[{"type":"x","v":1,"v":2}],"b":[],"b":{"c":1}}').text).toBe(
      '{"l":[{"type":"x","v":2}],"b":{"c":1}}',
    )
    expect(kept('{"b":{"z":1},"b":{"c":[1]},"s":[1,2,3],"s":[{"a":1}],"a":[],"a":{}}').text).toBe('{"b":{},"s":[]}')
  })

  test('keeps null, and drops values of another kind than the shape allows', () => {
    expect(kept('{"a":null,"b":null,"l":null}').text).toBe('{"a":null,"b":null,"l":null}')
    expect(kept('{"a":{"x":1},"b":[1],"l":{"0":1},"s":{}}')).toEqual({ text: '{}', dropped: ['a', 'b', 'l', 's'] })
  })

  test('members of Object.prototype are no allowed names', () => {
    const text = '{"__proto__":{"a":1},"constructor":1,"toString":1,"a":1,"l":[{"type":"constructor","v":1}]}'
    expect(kept(text).text).toBe('{"a":1,"l":[{"type":"none"}]}')
  })

  test('limits the list of dropped paths of a hostile text', () => {
    const text = JSON.stringify(
      Object.fromEntries(Array.from({ length: 300 }, (_, i) => [`${i}${'n'.repeat(999)}`, i])),
    )
    const { text: rest, dropped } = kept(text)
    expect(rest).toBe('{}')
    expect(JSON.stringify(dropped).length).toBeLessThan(4000)
  })

  test('equals removing from the parsed value, for any JSON in any layout', () => {
    const anyBody = fc.dictionary(fc.constantFrom('a', 'b', 'l', 's', 'flag', 'z', '__proto__', 'é"\\'), fc.jsonValue())
    fc.assert(
      fc.property(anyBody, fc.constantFrom(0, 2), (body, indent) => {
        const text = JSON.stringify(body, null, indent)
        const value = JSON.parse(text) as unknown
        const result = JSON.parse(keepShape(text, value, shape).text) as unknown
        expect(result).toEqual(restOf(value, shape))
      }),
      { numRuns: 300 },
    )
  }, 60_000)

  test('equals removing from the parsed value also where names occur twice', () => {
    const anyMember = fc.tuple(fc.constantFrom('a', 'b', 'l', 's', 'z'), fc.jsonValue())
    fc.assert(
      fc.property(fc.array(anyMember, { maxLength: 6 }), (members) => {
        const text = `{${members.map(([name, value]) => `${JSON.stringify(name)}:${JSON.stringify(value)}`).join(',')}}`
        const value = JSON.parse(text) as unknown
        expect(JSON.parse(keepShape(text, value, shape).text)).toEqual(restOf(value, shape))
      }),
      { numRuns: 300 },
    )
  }, 60_000)
})

/** The same on values. Undefined: dropped. */
function restOf(value: unknown, allowed: JsonShape): unknown {
  if (value === null) return null
  switch (allowed.kind) {
    case 'any':
      return value
    case 'scalar':
      return typeof value !== 'object' && (allowed.accepts?.(value) ?? true) ? value : undefined
    case 'either':
      return allowed.of.map((one) => restOf(value, one)).find((rest) => rest !== undefined)
    case 'list':
      if (!Array.isArray(value)) return undefined
      return value.map((item) => restOf(item, allowed.items)).filter((item) => item !== undefined)
    case 'object':
      if (typeof value !== 'object' || Array.isArray(value)) return undefined
      return Object.fromEntries(
        Object.entries(value).flatMap(([name, member]) => {
          const inner = Object.hasOwn(allowed.members, name) ? allowed.members[name] : undefined
          const rest = inner && restOf(member, inner)
          return rest === undefined ? [] : [[name, rest]]
        }),
      )
    case 'tagged': {
      if (typeof value !== 'object' || Array.isArray(value)) return undefined
      const { type } = value as { type?: unknown }
      const inner =
        typeof type === 'string' && Object.hasOwn(allowed.variants, type) ? allowed.variants[type] : undefined
      if (inner !== undefined) return restOf(value, inner)
      return allowed.instead === undefined ? undefined : (JSON.parse(allowed.instead(value)) as unknown)
    }
  }
}
