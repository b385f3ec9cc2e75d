/**
 * Plans are kept for as long as a connection lives, and the first ones are made when there is next to nothing in the
 * tables: reading all of it would look cheap then, and still be the plan when it is a million rows. Where there is no
 * index a plan without one looks so dear that PostgreSQL would compile it, for half a second each time.
 */
export const BY_INDEX = `select set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)`

/** Ours are fewer; a caller that makes new ones up all the time must not fill the memory of the database. */
const MOST_STATEMENTS = 200

/** The name a statement is prepared under on a connection; undefined for those that come too late to get one. */
export function createStatementNames(): (sql: string) => string | undefined {
  const names = new Map<string, string>()
  return (sql) => {
    const known = names.get(sql)
    if (known !== undefined || names.size >= MOST_STATEMENTS) return known
    const name = `polar_${names.size}`
    names.set(sql, name)
    return name
  }
}
