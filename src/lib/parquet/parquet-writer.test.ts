import fc from 'fast-check'
import { expect, test } from 'vitest'
import { readParquet } from '../../../test/support/read-parquet.ts'
import { createParquetWriter } from './parquet-writer.ts'
import type { ParquetColumns } from './schema.ts'
import { runs } from '../../../test/support/runs.ts'

const columns = {
  text: 'string',
  flag: 'boolean',
  small: 'int32',
  large: 'int64',
  real: 'double',
  ids: { list: 'int32' },
  bytes: { list: 'uint8' },
  floats: { list: 'float' },
  words: { list: 'string' },
  pair: { struct: { a: 'int32', b: { list: 'string' } } },
  nested: { list: { struct: { name: 'string', flags: { list: 'boolean' } } } },
} as const satisfies ParquetColumns

const maybe = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<T | null> => fc.option(value, { nil: null })
const anyText = fc.string({ unit: 'grapheme', maxLength: 8 })
const anyInt = fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 })

const anyRow = fc.record({
  text: maybe(anyText),
  flag: maybe(fc.boolean()),
  small: maybe(anyInt),
  large: maybe(fc.maxSafeInteger()),
  real: maybe(fc.double()),
  ids: maybe(fc.int32Array({ maxLength: 20 })),
  bytes: maybe(fc.uint8Array({ maxLength: 20 })),
  floats: maybe(fc.float32Array({ maxLength: 20 })),
  words: maybe(fc.array(maybe(anyText), { maxLength: 4 })),
  pair: maybe(fc.record({ a: maybe(anyInt), b: maybe(fc.array(anyText, { maxLength: 3 })) })),
  nested: maybe(
    fc.array(maybe(fc.record({ name: maybe(anyText), flags: maybe(fc.array(fc.boolean(), { maxLength: 3 })) })), {
      maxLength: 3,
    }),
  ),
})

type Row = typeof anyRow extends fc.Arbitrary<infer T> ? T : never

/** As the reader gives it. */
function toRead(row: Row): Record<string, unknown> {
  return {
    ...row,
    large: row.large === null ? null : BigInt(row.large),
    ids: row.ids && Array.from(row.ids),
    bytes: row.bytes && Array.from(row.bytes),
    floats: row.floats && Array.from(row.floats),
  }
}

function write(rows: readonly Record<string, unknown>[], rowGroupBytes?: number): Uint8Array {
  const writer = createParquetWriter(columns, rowGroupBytes === undefined ? {} : { rowGroupBytes })
  const pieces = rows.flatMap((row) => [...writer.add(row)])
  return Buffer.concat([...pieces, ...writer.end()])
}

test('another implementation reads nulls, empty lists, nesting and any number of row groups', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(anyRow, { maxLength: 12 }), fc.constantFrom(1, 200, 10_000), async (rows, size) => {
      expect(await readParquet(write(rows, size))).toEqual(rows.map(toRead))
    }),
    { numRuns: runs(100) },
  )
})

test('many single values, including booleans, keep their order', async () => {
  const rows = Array.from({ length: 10_001 }, (_, i) => ({ flag: i % 3 === 0, small: i, words: [String(i)] }))
  const read = await readParquet(write(rows))
  expect(read.map(({ flag, small, words }) => ({ flag, small, words }))).toEqual(rows)
})

test('a file without rows has its columns', async () => {
  expect(await readParquet(write([]))).toEqual([])
})
