import type { Database } from '../../../src/store/database.ts'
import { auditTables } from '../../../test/support/dispatch-tables.ts'
import type { PolarRun } from './run.ts'

const MOST_TOLD = 20

/** Returns the differences between the tables, and between the tables and the expected state. */
export async function findProblems({ expected, ledger }: PolarRun, database: Database): Promise<string[]> {
  const problems = await auditTables(database)
  const rows = await database.db.selectFrom('tasks').select(['id', 'status', 'valid', 'failed', 'cancelled']).execute()
  for (const { id, status, valid, failed, cancelled } of rows) {
    const known = expected.tasks.get(id)
    if (known === undefined) {
      problems.push(`${id} was never submitted`)
      continue
    }
    if (status === 'running') problems.push(`${id} has not ended`)
    if (known.valid !== valid) problems.push(`${id} has ${valid} valid sessions, expected ${known.valid}`)
    // Sessions that were lost too often fail without an answer; the expected state counts them as cancelled.
    const others = known.task.samples - known.valid
    if (failed + cancelled !== others)
      problems.push(`${id} has ${failed} failed and ${cancelled} stopped, not ${others}`)
  }
  if (rows.length !== expected.tasks.size)
    problems.push(`${rows.length} tasks are stored, ${expected.tasks.size} were submitted`)
  if (ledger.ends.length !== expected.tasks.size)
    problems.push(`${ledger.ends.length} of ${expected.tasks.size} tasks ended`)
  if (expected.unjustRefusals > 0)
    problems.push(`${expected.unjustRefusals} results of nodes with valid leases were rejected`)
  if (problems.length <= MOST_TOLD) return problems
  return [...problems.slice(0, MOST_TOLD), `and ${problems.length - MOST_TOLD} more`]
}
