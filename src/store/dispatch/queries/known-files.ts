import { sql } from 'kysely'
import type { Sql } from '../../database.ts'

/**
 * Returns the paths that a result or artifact row refers to. Rows are found by the session id in the path: there is no index
 * by path, and a full scan for every few hundred files would take quadratic time.
 */
export async function findKnownFiles(db: Sql, paths: readonly string[]): Promise<Set<string>> {
  const named = paths.filter((path) => sessionIdsIn(path).length > 0)
  const unnamed = paths.filter((path) => sessionIdsIn(path).length === 0)
  return new Set([...(await findBySession(db, named)), ...(await findByPath(db, unnamed))])
}

/**
 * Possible session ids of a file, see files/layout.ts. `s.1.json.zst` may belong to `s` or `s.1`, since ids may contain dots;
 * the query compares the whole path as well.
 */
function sessionIdsIn(path: string): string[] {
  const [, name] = /^(?:results|artifacts)\/[0-9a-f]{2}\/([^/]+)/.exec(path) ?? []
  const parts = name?.split('.') ?? []
  return parts.slice(1).map((_, i) => parts.slice(0, i + 1).join('.'))
}

async function findBySession(db: Sql, paths: readonly string[]): Promise<string[]> {
  if (paths.length === 0) return []
  const sessions = JSON.stringify([...new Set(paths.flatMap(sessionIdsIn))])
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

/** The server stores no files under such paths, but the caller deletes every file that is not returned. */
async function findByPath(db: Sql, paths: readonly string[]): Promise<string[]> {
  if (paths.length === 0) return []
  const { rows } = await sql<{ path: string }>`
    with p as (select json_array_elements_text(${JSON.stringify(paths)}::json) as path)
    select path from results where path in (select path from p)
    union select stored_path from artifacts where stored_path in (select path from p)
  `.execute(db)
  return rows.map(({ path }) => path)
}
