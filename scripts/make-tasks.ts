import { mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { loadGradedTasks, makeRepository, toSwebenchRow, writeHarborTask } from '../test/support/graded-tasks.ts'

/** Writes the repositories of test/tasks in the formats of trainers: git repositories, SWE-bench rows, Harbor folders. */
function makeTasks(dir: string): void {
  const rows = loadGradedTasks().map((task) => {
    const repository = join(dir, 'repositories', task.name)
    const { baseCommit } = makeRepository(task, repository)
    writeHarborTask(task, join(dir, 'harbor', task.name))
    return toSwebenchRow(task, repository, baseCommit)
  })
  writeFileSync(join(dir, 'swebench.jsonl'), rows.map((row) => `${JSON.stringify(row)}\n`).join(''))
}

const [dir] = process.argv.slice(2)
if (dir === undefined) {
  console.error('usage: node scripts/make-tasks.ts DIR\n\nexample: node scripts/make-tasks.ts /tmp/tasks')
  process.exitCode = 2
} else {
  mkdirSync(dir, { recursive: true })
  makeTasks(resolve(dir))
  console.log(`${dir}: repositories/, harbor/, swebench.jsonl`)
}
