import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { orInvalid } from '../../config/or-invalid.ts'
import { RolloutError } from '../../model/failure.ts'
import type { TaskRequest } from '../../model/task.ts'

/** Loads one row per line. Throws `config.invalid` with the problems of all lines. */
export async function loadSweRows(file: string, toTask: (row: unknown) => TaskRequest): Promise<TaskRequest[]> {
  const tasks: TaskRequest[] = []
  const problems: string[] = []
  const lines = await orInvalid(`Rows in ${file}`, () => Array.fromAsync(createInterface(createReadStream(file))))
  for (const [index, line] of lines.entries()) {
    if (line.trim() === '') continue
    try {
      tasks.push(toTask(JSON.parse(line)))
    } catch (error) {
      problems.push(`line ${index + 1}: ${error instanceof Error ? error.message : String(error)}`)
    }
  }
  if (problems.length === 0 && tasks.length === 0) problems.push('the file has no row')
  if (problems.length > 0) throw new RolloutError('config.invalid', [`Rows in ${file}:`, ...problems].join('\n  '))
  return tasks
}
