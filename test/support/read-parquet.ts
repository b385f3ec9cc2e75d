import { zstdDecompressSync } from 'node:zlib'
import { parquetReadObjects } from 'hyparquet'

/** Reads all rows of a Parquet file with another implementation than the writer's. Missing values are null. */
export async function readParquet(file: Uint8Array): Promise<Record<string, unknown>[]> {
  const copy = new Uint8Array(file)
  const compressors = { ZSTD: (input: Uint8Array) => new Uint8Array(zstdDecompressSync(input)) }
  const rows = await parquetReadObjects({ file: copy.buffer, compressors })
  return rows.map((row) => withNulls(row) as Record<string, unknown>)
}

function withNulls(value: unknown): unknown {
  if (value === undefined) return null
  if (Array.isArray(value)) return value.map(withNulls)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, withNulls(inner)]))
}
