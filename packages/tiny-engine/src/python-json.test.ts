import fc from 'fast-check'
import { expect, test } from 'vitest'
import { parsePythonJson, printFloat, PythonNumber, toPythonNumber } from './python-json.ts'

test('parsePythonJson() keeps numbers in Python’s notation', () => {
  const spellings = {
    '3.0': '3.0',
    '1e3': '1000.0',
    '-0': '0',
    '-0.0': '-0.0',
    '1.50': '1.5',
    '12345678901234567890': '12345678901234567890',
    '1E-5': '1e-05',
    '0.0001': '0.0001',
    '1e15': '1000000000000000.0',
    '1e16': '1e+16',
    '1.5e300': '1.5e+300',
    '1e400': 'Infinity',
    NaN: 'NaN',
    '-Infinity': '-Infinity',
  }
  for (const [source, printed] of Object.entries(spellings)) {
    expect(parsePythonJson(source)).toEqual(new PythonNumber(printed))
  }
})

test('parsePythonJson() keeps the order of keys, also of integer-like keys', () => {
  const value = parsePythonJson('{"b": 1, "10": 2, "2": 3, "__proto__": 4}')
  expect(value).toBeInstanceOf(Map)
  expect([...(value as Map<string, unknown>).keys()]).toEqual(['b', '10', '2', '__proto__'])
})

test('parsePythonJson() accepts and rejects the same texts as JSON.parse', () => {
  const withoutNumbers = fc
    .jsonValue({ noUnicodeString: false })
    .filter((value) => !/[0-9]/.test(JSON.stringify(value)))
  fc.assert(
    fc.property(withoutNumbers, fc.constantFrom(undefined, 1, '\t'), (value, indent) => {
      expect(toPlain(parsePythonJson(JSON.stringify(value, undefined, indent)))).toEqual(toPlain(value))
    }),
  )
  const cuts = fc.tuple(fc.json(), fc.nat(), fc.constantFrom('', ',', '"', '}', '\u0000', '\\x'))
  fc.assert(
    fc.property(cuts, ([text, at, inserted]) => {
      const damaged = text.slice(0, at % (text.length + 1)) + inserted
      expect(isAccepted(parsePythonJson, damaged)).toBe(isAccepted(JSON.parse, damaged))
    }),
    { numRuns: 500 },
  )
})

test('printFloat() prints digits that read back as the same number', () => {
  fc.assert(
    fc.property(fc.double({ noNaN: true, noDefaultInfinity: true }), (value) =>
      Object.is(Number(printFloat(value)), value),
    ),
  )
})

test('toPythonNumber() treats whole JavaScript numbers as integers', () => {
  expect([3, -0, 2.5, 10n ** 20n].map((value) => toPythonNumber(value).text)).toEqual([
    '3',
    '0',
    '2.5',
    '100000000000000000000',
  ])
})

function isAccepted(parse: (text: string) => unknown, text: string): boolean {
  try {
    parse(text)
    return true
  } catch (error) {
    expect(error).toBeInstanceOf(SyntaxError)
    return false
  }
}

/** Converts objects to sorted entries, so that both forms can be compared. */
function toPlain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(toPlain)
  if (typeof value !== 'object' || value === null) return value
  const entries: [string, unknown][] = value instanceof Map ? [...value] : Object.entries(value)
  return {
    members: entries
      .map(([key, member]) => [key, toPlain(member)])
      .toSorted(([a], [b]) => (String(a) < String(b) ? -1 : 1)),
  }
}
