import type { Sql } from '../../database.ts'

export async function getPolicy(db: Sql): Promise<number> {
  const { version } = await db.selectFrom('policy').select('version').executeTakeFirstOrThrow()
  return version
}
