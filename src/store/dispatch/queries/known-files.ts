import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

/**
 * Of these places of files, those that some result or artifact is kept at. Rows are found by the session that a place is
 * named after: there is no index of places, and reading all rows for every few hundred files would take the longer the
 * more there are, twice over.
 */
export async function findKnownFiles(db: Sql, paths: readonly string[]): Promise<Set<string>> {
  const usual = paths.filter((path) => namesIn(path).length > 0)
  const odd = paths.filter((path) => namesIn(path).length === 0)
  return new Set([...(await findBySession(db, usual)), ...(await findByPlace(db, odd))])
}

/**
 * What the session may be called that a file is of: see files/layout.ts. `s.1.json.zst` may be of `s`, and of `s.1`, since
 * ids may have dots; the place itself is compared as well.
 */
function namesIn(path: string): string[] {
  const [, name] = /^(?:results|artifacts)\/[0-9a-f]{2}\/([^/]+)/.exec(path) ?? []
  const parts = name?.split('.') ?? []
  return parts.slice(1).map((_, i) => parts.slice(0, i + 1).join('.'))
}

async function findBySession(db: Sql, paths: readonly string[]): Promise<string[]> {
  if (paths.length === 0) return []
  const sessions = JSON.stringify([...new Set(paths.flatMap(namesIn))])
  const { rows } = await sql<{ path: string }>`
    with p as materialized (select json_array_elements_text(${JSON.stringify(paths)}::json) as path), f as materialized (
      select path from results where session_id = any(array(select json_array_elements_text(${sessions}::json)))
      union all
      select stored_path from artifacts where session_id = any(array(select json_array_elements_text(${sessions}::json)))
    )
    select path from f where path in (select path from p)
  `.execute(db)
  return rows.map(({ path }) => path)
}

/** Nothing of ours lies elsewhere, but what is said to be unknown is removed. */
async function findByPlace(db: Sql, paths: readonly string[]): Promise<string[]> {
  if (paths.length === 0) return []
  const { rows } = await sql<{ path: string }>`
    with p as (select json_array_elements_text(${JSON.stringify(paths)}::json) as path)
    select path from results where path in (select path from p)
    union select stored_path from artifacts where stored_path in (select path from p)
  `.execute(db)
  return rows.map(({ path }) => path)
}
