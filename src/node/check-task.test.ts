import { mkdir, mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { renderProblem } from '../model/task-problem.ts'
import { TaskRequest } from '../model/task.ts'
import { checkTask, type TaskCheckOptions } from './check-task.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-check-task-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

const HERE: TaskCheckOptions = { modules: [], hasFiles: true, secret: () => undefined }
const ELSEWHERE: TaskCheckOptions = { hasFiles: false }

async function problemsOf(task: Record<string, unknown>, options = HERE): Promise<string[]> {
  const parsed = TaskRequest.parse({ task_id: 't', instruction: 'Do it.', agent: { harness: 'pi' }, ...task })
  return (await checkTask(parsed, options)).map((problem) => renderProblem(problem))
}

test('checkTask() returns no problem for a valid task', async () => {
  await writeFile(join(dir, 'in.txt'), '')
  await mkdir(join(dir, 'tests'))
  const task = {
    agent: { harness: 'shell', custom_shell: { command: 'true' } },
    builder: { strategy: 'prefix_merging' },
    evaluator: {
      strategy: 'command',
      config: { command: 'true', files: [{ source: join(dir, 'tests'), target: 'tests' }] },
    },
    runtime: {
      backend: 'bubblewrap',
      prepare: [
        { type: 'upload_file', source: join(dir, 'in.txt'), target: 'in.txt' },
        { type: 'exec', command: 'true' },
      ],
      eval_prepare: [{ type: 'upload_dir', source: join(dir, 'tests'), target: 'tests' }],
    },
  }
  expect(await problemsOf(task)).toEqual([])
  expect(await problemsOf(task, ELSEWHERE)).toEqual([])
})

test.each([
  [{ agent: { harness: 'nope' } }, /^agent\.harness: "nope" is none of codex, /],
  [{ builder: { strategy: 'nope' } }, /^builder\.strategy: unknown builder "nope"\. Use per_request, /],
  [{ builder: { strategy: 'prefix_merging', config: { nope: 1 } } }, /^builder\.config: .*nope/],
  [{ evaluator: { strategy: 'nope' } }, /^evaluator\.strategy: unknown evaluator "nope"\. Use /],
  [{ evaluator: { strategy: 'command' } }, /^evaluator\.config\.command: /],
  [{ runtime: { backend: 'nope' } }, /^runtime\.backend: "nope" is none of local, bubblewrap, /],
  [{ agent: { harness: 'shell', custom_shell: { command: 'x' }, skills_path: '/' } }, /^agent: .*skills/],
])('checkTask() finds %j on the node and on the server', async (task, problem) => {
  for (const options of [HERE, ELSEWHERE]) {
    const problems = await problemsOf(task, options)
    expect(problems).toHaveLength(1)
    expect(problems[0]).toMatch(problem)
  }
})

test.each([
  ['agent', { agent: { import_path: '/no/agent.ts' } }, 'agent: Harness module /no/agent.ts'],
  ['builder', { builder: { strategy: '/no/builder.ts' } }, 'builder.strategy: Builder module /no/builder.ts'],
  ['evaluator', { evaluator: { strategy: '/no/grade.ts' } }, 'evaluator.strategy: Evaluator module /no/grade.ts'],
  ['runtime', { runtime: { import_path: '/no/runtime.ts' } }, 'runtime.import_path: Runtime module /no/runtime.ts'],
])('checkTask() finds a forbidden module (%s) if modules are known', async (_, task, problem) => {
  expect(await problemsOf(task)).toEqual([expect.stringContaining(problem)])
  expect(await problemsOf(task, ELSEWHERE)).toEqual([])
})

test('checkTask() finds every missing file if files are on this machine', async () => {
  await writeFile(join(dir, 'file'), '')
  const task = {
    agent: { harness: 'pi', skills_path: join(dir, 'skills') },
    runtime: {
      prepare: [
        { type: 'exec', command: 'true' },
        { type: 'upload_file', source: join(dir, 'none'), target: 'x' },
        { type: 'upload_file', source: dir, target: 'x' },
        { type: 'upload_dir', source: join(dir, 'file'), target: 'x' },
      ],
      eval_prepare: [{ type: 'upload_dir', source: 'relative', target: 'x' }],
    },
    evaluator: { strategy: 'harbor', config: { task_dir: join(dir, 'file', 'task') } },
  }
  expect((await problemsOf(task)).toSorted()).toEqual([
    `agent.skills_path: ${dir}/skills does not exist.`,
    `evaluator.config.task_dir: ${dir}/file/task does not exist.`,
    'runtime.eval_prepare[0].source: relative is not an absolute path.',
    `runtime.prepare[1].source: ${dir}/none does not exist.`,
    `runtime.prepare[2].source: ${dir} is a folder; use upload_dir.`,
    `runtime.prepare[3].source: ${dir}/file is not a folder.`,
  ])
  expect(await problemsOf(task, ELSEWHERE)).toEqual([])
})

test('checkTask() finds a missing secret if secrets are known', async () => {
  const config = { base_url: 'http://127.0.0.1:1', model: 'm', rubric: 'Is it good?', api_key_env: 'JUDGE_KEY' }
  const task = { evaluator: { strategy: 'judge', config } }
  expect(await problemsOf(task)).toEqual([expect.stringMatching(/^evaluator\.strategy: .*JUDGE_KEY/)])
  expect(await problemsOf(task, ELSEWHERE)).toEqual([])
})

test('checkTask() returns all problems of a task at once', async () => {
  const problems = await problemsOf({
    agent: { harness: 'nope' },
    builder: { strategy: 'nope' },
    evaluator: { strategy: 'command', config: { command: 7, timeout: 1 } },
    runtime: { backend: 'nope', prepare: [{ type: 'upload_file', source: '/no/file', target: 'x' }] },
  })
  const places = problems.map((problem) => problem.split(':')[0])
  for (const place of [
    'agent.harness',
    'builder.strategy',
    'evaluator.config.command',
    'runtime.backend',
    'runtime.prepare[0].source',
  ])
    // prettier-ignore
    expect(places).toContain(place)
})
