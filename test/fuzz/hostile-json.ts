import type { Random } from './random.ts'

type Json = null | boolean | number | string | Json[] | { [key: string]: Json }
export type Example = { readonly [key: string]: unknown }

/** Placeholder of JSON text that `JSON.stringify` never writes. */
const MARK = '@@hostile@@'

/** Returns a body of at most about `size` bytes: an example with one hostile value, or a value that is not an object. */
export function hostileJson(random: Random, examples: readonly Example[], size: number): string {
  const hostile = random.pick(HOSTILE)(random, size)
  if (random.oneIn(8)) return hostile
  const body = structuredClone(random.pick(examples)) as { [key: string]: Json }
  replaceSomewhere(body, random)
  return JSON.stringify(body).replace(`"${MARK}"`, () => hostile)
}

/** Replaces a random value by the mark, or adds the mark. */
function replaceSomewhere(value: { [key: string]: Json } | Json[], random: Random): void {
  const keys = Object.keys(value)
  if (keys.length === 0 || random.oneIn(12)) {
    if (Array.isArray(value)) value.push(MARK)
    else value[random.pick(['extra', '__proto__x', 'constructor', 'toString', '', 'messages', 'n', 'metadata'])] = MARK
    return
  }
  const key = random.pick(keys)
  const holder = value as { [key: string]: Json }
  const inner = holder[key]
  if (typeof inner === 'object' && inner !== null && !random.oneIn(3)) replaceSomewhere(inner, random)
  else holder[key] = MARK
}

type Make = (random: Random, size: number) => string

const list =
  (...elements: string[]): Make =>
  (random, size) => {
    const element = random.pick(elements)
    return `[${`${element},`.repeat(Math.max(0, Math.floor(size / (element.length + 1)) - 1))}${element}]`
  }

const HOSTILE: readonly Make[] = [
  (random) =>
    random.pick(['null', 'true', '0', '-1', '1.5', '""', '"x"', '[]', '{}', '[[]]', '[{}]', '{"a":1}', '[null]']),
  list('1', '""', 'null', '[]', '{}', '"a"', '[[1]]', '{"type":"text"}', '{"role":"user","content":1}', '0.1'),
  (random, size) => {
    const [open, close] = random.pick([
      ['[', ']'],
      ['{"a":', '}'],
      ['[{"content":', '}]'],
      ['[', ''],
    ] as const)
    const depth = Math.floor(size / (open.length + close.length))
    return `${open.repeat(depth)}1${close.repeat(depth)}`
  },
  (random, size) =>
    `"${random.pick(['a', 'é', '\\u0000', '\\ud800', '\\n', '<summary>', '%00', '💥']).repeat(size / 6)}"`,
  (random, size) => `${random.pick(['1', '-', '0.', '1e', '-1'])}${'9'.repeat(size)}`,
  (random) =>
    random.pick(['1e999', '-1e999', '1e-999', '-0', '9007199254740993', '0x10', '01', '+1', 'NaN', 'Infinity']),
  (random, size) => {
    const key = random.pick(['a', 'role', 'messages', '__proto__', 'constructor', 'model'])
    const entry = `"${key}":${random.pick(['1', 'null', '[]', '{}'])}`
    return `{${`${entry},`.repeat(size / (entry.length + 1))}${entry}}`
  },
  (_, size) => `{${Array.from({ length: Math.max(1, size / 14) }, (_unused, i) => `"k${i}":${i % 10}`).join()}}`,
  (random) =>
    random.pick(['"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\x"', "'a'", '"a', '[1,', '{"a"', '{,}', '']),
  (random) =>
    random.pick(['{"__proto__":{"isAdmin":true}}', '{"constructor":{"prototype":{"x":1}}}', '{"length":1e9}']),
]
