import type { ResultReference } from '../types.ts'

/** JSON that this server stored itself, so it is not validated. */
export function parseStored<T>(json: string | null): T | undefined {
  return json === null ? undefined : (JSON.parse(json) as T)
}

/** The columns of a left join with `results`; an empty path means that the attempt delivered no result. */
export function toResult(row: {
  path: string | null
  digest: string | null
  bytes: number | null
}): ResultReference | undefined {
  return row.path ? { path: row.path, digest: row.digest!, bytes: row.bytes! } : undefined
}
