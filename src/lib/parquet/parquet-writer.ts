import { endianness } from 'node:os'
import { ColumnChunk } from './column-chunk.ts'
import { leavesOf, schemaElements, type ParquetColumns } from './schema.ts'
import { encodeThrift, type ThriftValue } from './thrift.ts'

/** Writer of a Parquet file, which it returns piece by piece. Holds one row group in memory. */
export interface ParquetWriter {
  /**
   * Adds a row by column names; missing columns are null. Typed arrays are the fastest lists of numbers: they are not copied,
   * and must not change afterwards.
   */
  add(row: Readonly<Record<string, unknown>>): Iterable<Uint8Array>
  end(): Iterable<Uint8Array>
}

interface ParquetOptions {
  /** Approximate bytes of a row group. */
  rowGroupBytes?: number
  /** Recorded in the footer. */
  metadata?: Readonly<Record<string, string>>
  createdBy?: string
}

const MAGIC = Buffer.from('PAR1')

/**
 * Uses plain encoding, zstd and one page per column, which every reader supports; numbers of typed arrays are written without
 * conversion. https://parquet.apache.org/docs/file-format/
 */
export function createParquetWriter(columns: ParquetColumns, options: ParquetOptions = {}): ParquetWriter {
  if (endianness() !== 'LE') throw new Error('The Parquet writer supports only little-endian machines.')
  const { rowGroupBytes = 8 * 2 ** 20, metadata = {}, createdBy = 'polar' } = options
  const leaves = leavesOf(columns)
  const rowGroups: ThriftValue[] = []
  let chunks = leaves.map((leaf) => new ColumnChunk(leaf))
  let offset = 0
  let rows = 0
  let rowsBefore = 0

  function* begin(): Generator<Uint8Array> {
    if (offset > 0) return
    offset = MAGIC.length
    yield MAGIC
  }

  function* endRowGroup(): Generator<Uint8Array> {
    if (rows === rowsBefore) return
    const described: ThriftValue[] = []
    let rawLength = 0
    for (const chunk of chunks) {
      const finished = chunk.finish(offset)
      yield* finished.bytes
      described.push(finished.metadata)
      offset += finished.length
      rawLength += finished.rawLength
    }
    rowGroups.push({
      struct: [
        [1, { list: described }],
        [2, { i64: rawLength }],
        [3, { i64: rows - rowsBefore }],
      ],
    })
    chunks = leaves.map((leaf) => new ColumnChunk(leaf))
    rowsBefore = rows
  }

  return {
    *add(row) {
      yield* begin()
      for (const chunk of chunks) chunk.add(row)
      rows += 1
      if (chunks.reduce((sum, chunk) => sum + chunk.byteLength, 0) >= rowGroupBytes) yield* endRowGroup()
    },
    *end() {
      yield* begin()
      yield* endRowGroup()
      const pairs = Object.entries(metadata).map(([key, value]) => ({
        struct: [[1, { text: key }] as const, [2, { text: value }] as const],
      }))
      const footer = encodeThrift({
        struct: [
          [1, { i32: 2 }],
          [2, { list: schemaElements(columns) }],
          [3, { i64: rows }],
          [4, { list: rowGroups }],
          [5, pairs.length === 0 ? undefined : { list: pairs }],
          [6, { text: createdBy }],
        ],
      })
      const length = Buffer.alloc(4)
      length.writeUInt32LE(footer.length)
      yield* [footer, length, MAGIC]
    },
  }
}
