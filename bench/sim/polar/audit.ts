import type { Database } from '../../../src/store/database.ts'
import { auditBooks } from '../../../test/support/dispatch-books.ts'
import type { PolarRun } from './run.ts'

const MOST_TOLD = 20

/** Whether the tables agree with each other and with what the simulation saw from the outside. What does not, in words. */
export async function findProblems({ books, ledger }: PolarRun, database: Database): Promise<string[]> {
  const problems = await auditBooks(database)
  const rows = await database.db.selectFrom('tasks').select(['id', 'status', 'valid', 'failed', 'cancelled']).execute()
  for (const { id, status, valid, failed, cancelled } of rows) {
    const known = books.tasks.get(id)
    if (known === undefined) {
      problems.push(`nobody submitted ${id}`)
      continue
    }
    if (status === 'running') problems.push(`${id} has not ended`)
    if (known.valid !== valid) problems.push(`${id} has ${valid} sessions that count, we brought ${known.valid}`)
    // Those that were lost too often fail without a word to us; seen from here they were stopped.
    const others = known.task.samples - known.valid
    if (failed + cancelled !== others)
      problems.push(`${id} has ${failed} failed and ${cancelled} stopped, not ${others}`)
  }
  if (rows.length !== books.tasks.size)
    problems.push(`${rows.length} tasks are stored, ${books.tasks.size} were submitted`)
  if (ledger.ends.length !== books.tasks.size) problems.push(`${ledger.ends.length} of ${books.tasks.size} tasks ended`)
  if (books.unjustRefusals > 0) problems.push(`${books.unjustRefusals} results of faithful nodes were refused`)
  if (problems.length <= MOST_TOLD) return problems
  return [...problems.slice(0, MOST_TOLD), `and ${problems.length - MOST_TOLD} more`]
}
