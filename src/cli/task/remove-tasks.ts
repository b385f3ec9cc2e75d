import { toVisibleLine } from '../../lib/visible-text.ts'
import { RolloutError } from '../../model/failure.ts'
import { EXIT, type ExitCode } from '../command.ts'
import type { FoundServer } from '../input/find-server.ts'
import { print, printError, printJson } from '../views/print.ts'

/** Deletes tasks. A task that cannot be deleted is reported and does not prevent the deletion of the others. */
export async function removeTasks(
  ids: readonly string[],
  { json }: { json: boolean },
  find: () => Promise<FoundServer>,
): Promise<ExitCode> {
  const { client } = await find()
  let isRejected = false
  for (const id of ids) {
    try {
      const deleted = await client.deleteTask({ params: { task_id: id } })
      const sessions = deleted.deleted_sessions === 1 ? '1 session' : `${deleted.deleted_sessions} sessions`
      if (json) printJson(deleted)
      else print(`${toVisibleLine(id)}: deleted, with ${sessions} and ${toMegabytes(deleted.deleted_bytes)} MB\n`)
    } catch (error) {
      if (!(error instanceof RolloutError) || !REJECTIONS.has(error.code)) throw error
      isRejected = true
      if (json) printJson({ task_id: id, error: error.failure })
      else printError(`${toVisibleLine(`${id}: not deleted. ${error.message}`)}\n`)
    }
  }
  return isRejected ? EXIT.failed : EXIT.done
}

function toMegabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(1)
}

/** The task runs, or does not exist. The next tasks are still deleted. */
const REJECTIONS: ReadonlySet<string> = new Set(['request.conflict', 'request.not-found'])
