import { expect, test } from 'vitest'
import { TaskRequest } from '../../model/task.ts'
import { assertTasks } from './assert-tasks.ts'

const task = (harness: string): TaskRequest =>
  TaskRequest.parse({ task_id: 't', instruction: 'Do it.', agent: { harness } })

const checkTask = async ({ agent }: TaskRequest) =>
  agent.harness === 'pi' ? [] : [{ path: ['agent', 'harness'], message: `"${agent.harness}" is unknown.` }]

test('assertTasks() throws with the problems of all tasks and their paths', async () => {
  const tasks = ['pi', 'a', 'b'].map((harness, index) => ({ task: task(harness), lead: ['tasks', index] }))
  await expect(assertTasks(tasks, checkTask)).rejects.toMatchObject({
    code: 'request.malformed',
    message: expect.stringMatching(/tasks\[1\]\.agent\.harness: "a" is unknown\.; tasks\[2\]\.agent\.harness: "b"/),
    problems: [
      { loc: ['body', 'tasks', 1, 'agent', 'harness'], msg: '"a" is unknown.' },
      { loc: ['body', 'tasks', 2, 'agent', 'harness'], msg: '"b" is unknown.' },
    ],
  })
})

test('assertTasks() accepts valid tasks, and all tasks without a checker', async () => {
  await assertTasks([{ task: task('pi'), lead: [] }], checkTask)
  await assertTasks([{ task: task('a'), lead: [] }], undefined)
})
