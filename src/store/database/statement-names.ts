/**
 * Plans live as long as the connection, and the first ones are made when the tables are almost empty: a sequential scan looks
 * cheap then, and would still be the plan with a million rows. Without sequential scans, a query without an index looks so
 * expensive that PostgreSQL would compile it with JIT, which takes half a second each time.
 */
export const BY_INDEX = `select set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)`

/** The code has fewer; the limit protects the database's memory against a caller that generates statements. */
const MAX_STATEMENTS = 200

/** Returns the name of the prepared statement for an SQL text; undefined beyond the limit. */
export function createStatementNames(): (sql: string) => string | undefined {
  const names = new Map<string, string>()
  return (sql) => {
    const known = names.get(sql)
    if (known !== undefined || names.size >= MAX_STATEMENTS) return known
    const name = `polar_${names.size}`
    names.set(sql, name)
    return name
  }
}
