import type { ResultReference } from '../types.ts'

/** Parses JSON that a server stored itself, so callers cast it without validation. Undefined for null. */
export function parseStored(json: string | null): unknown {
  return json === null ? undefined : JSON.parse(json)
}

/** The columns of a left join with `results`; an empty path means that the attempt delivered no result. */
export function toResult(row: {
  path: string | null
  digest: string | null
  bytes: number | null
}): ResultReference | undefined {
  return row.path ? { path: row.path, digest: row.digest!, bytes: row.bytes! } : undefined
}
