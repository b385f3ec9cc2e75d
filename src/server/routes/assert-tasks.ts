import { InvalidRequest } from '../../api/read-call.ts'
import type { TaskRequest } from '../../model/task.ts'
import { renderProblem, type TaskProblem } from '../../model/task-problem.ts'

/** Finds every problem of a task that can be found without a node. */
export type CheckTask = (task: TaskRequest) => Promise<TaskProblem[]>

const MAX_PROBLEMS = 20

/** Throws `request.malformed` with the problems of all tasks. `lead`: path of the task in the request body. */
export async function assertTasks(
  tasks: readonly { task: TaskRequest; lead: TaskProblem['path'] }[],
  checkTask: CheckTask | undefined,
): Promise<void> {
  if (checkTask === undefined) return
  const found = await Promise.all(
    tasks.map(async ({ task, lead }) => {
      const problems = await checkTask(task)
      return problems.map((problem) => ({ ...problem, lead }))
    }),
  )
  const problems = found.flat().slice(0, MAX_PROBLEMS)
  if (problems.length === 0) return
  const lines = problems.map((problem) => renderProblem(problem, problem.lead))
  throw new InvalidRequest(
    `No task of this request was created. ${lines.join('; ')}`,
    problems.map(({ path, lead, message }) => ({ loc: ['body', ...lead, ...path], msg: message, type: 'value_error' })),
  )
}
