import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { TaskRequest } from '../../model/task.ts'
import { loadTaskFiles, loadTasks } from './load-tasks.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-tasks-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

async function load(name: string, text: string) {
  const file = join(dir, name)
  await writeFile(file, text)
  return loadTasks(file)
}

async function problemOf(name: string, text: string): Promise<string> {
  const error: unknown = await load(name, text).then(
    () => undefined,
    (reason: unknown) => reason,
  )
  expect(error).toMatchObject({ code: 'config.invalid' })
  return (error as Error).message
}

const PLAIN = 'instruction: Do it.\nagent: { harness: pi }\n'

describe('loadTasks() reads', () => {
  test('one task, with the file name as task_id and the defaults of a task', async () => {
    const [task, ...more] = await load('fix-it.yaml', PLAIN)
    expect(more).toEqual([])
    expect(task).toMatchObject({ task_id: 'fix-it', instruction: 'Do it.', num_samples: 1, timeout_seconds: 600 })
  })

  test('a list', async () => {
    const tasks = await load(
      'set.yml',
      `- task_id: own\n  instruction: a\n  agent: { harness: pi }\n- instruction: b\n  agent: { harness: pi }\n`,
    )
    expect(tasks.map(({ task_id, instruction }) => [task_id, instruction])).toEqual([
      ['own', 'a'],
      ['set-2', 'b'],
    ])
  })

  test('several documents, and skips empty ones', async () => {
    const tasks = await load('set.yaml', `---\n${PLAIN}---\n---\n${PLAIN}`)
    expect(tasks.map(({ task_id }) => task_id)).toEqual(['set-1', 'set-2'])
  })

  test('JSON, one or a list', async () => {
    const value = { instruction: 'a', agent: { harness: 'pi' } }
    expect(await load('one.json', JSON.stringify(value))).toHaveLength(1)
    expect(await load('two.json', JSON.stringify([value, value]))).toHaveLength(2)
  })

  test('JSON lines, and skips empty ones', async () => {
    const line = JSON.stringify({ instruction: 'a', agent: { harness: 'pi' } })
    const tasks = await load('many.jsonl', `${line}\n\n${line}\r\n`)
    expect(tasks.map(({ task_id }) => task_id)).toEqual(['many-1', 'many-2'])
  })
})

test('loadTasks() resolves relative paths from the folder of the file', async () => {
  const [task] = await load(
    'paths.yaml',
    `
instruction: a
agent: { harness: pi, skills_path: skills }
runtime:
  prepare:
    - { type: upload_file, source: in.txt, target: in.txt }
    - { type: upload_dir, source: /data/x, target: x }
    - { type: exec, command: ./setup.sh }
  eval_prepare: [{ type: upload_dir, source: ../tests, target: tests }]
evaluator:
  strategy: weighted
  config:
    parts:
      - name: tests
        strategy: command
        config: { command: make check, files: [{ source: tests, target: tests }] }
      - { name: harbor, strategy: harbor, config: { task_dir: task } }
`,
  )
  expect(task).toMatchObject({
    agent: { skills_path: join(dir, 'skills') },
    runtime: {
      prepare: [
        { source: join(dir, 'in.txt'), target: 'in.txt' },
        { source: '/data/x', target: 'x' },
        { command: './setup.sh' },
      ],
      eval_prepare: [{ source: join(dir, '../tests') }],
    },
    evaluator: {
      strategy: 'weighted',
      config: {
        parts: [
          { config: { command: 'make check', files: [{ source: join(dir, 'tests'), target: 'tests' }] } },
          { config: { task_dir: join(dir, 'task') } },
        ],
      },
    },
  })
})

test('loadTasks() resolves modules from the folder of the file, and keeps names of strategies', async () => {
  const [task] = await load(
    'modules.yaml',
    `
instruction: a
agent: { import_path: ./agent.ts }
runtime: { import_path: ./runtime.ts }
evaluator: { strategy: ./grade.ts }
`,
  )
  expect(task).toMatchObject({
    agent: { import_path: join(dir, 'agent.ts') },
    runtime: { import_path: join(dir, 'runtime.ts') },
    evaluator: { strategy: join(dir, 'grade.ts') },
  })
  const [named] = await load('named.yaml', `${PLAIN}evaluator: { strategy: session_completed }\n`)
  expect(named!.evaluator!.strategy).toBe('session_completed')
})

describe('loadTaskFiles() reports', () => {
  test('all problems of all tasks with task and path', async () => {
    const message = await problemOf(
      'bad.yaml',
      `- instruction: 7\n  num_sample: 3\n  agent: { harness: pi }\n- ${PLAIN.replace('\n', '\n  ')}- agent: { harness: pi, custom_shell: { command: x } }\n`,
    )
    expect(message).toContain(join(dir, 'bad.yaml'))
    for (const problem of [
      'tasks[0].instruction: ',
      'num_sample',
      'tasks[2].instruction: ',
      'tasks[2].agent: custom_shell',
    ]) {
      expect(message).toContain(problem)
    }
    expect(message).not.toContain('tasks[1]')
  })

  test('problems of the check and of the schema, of every file', async () => {
    const [one, other] = [join(dir, 'one.yaml'), join(dir, 'other.yaml')]
    await writeFile(one, `- ${PLAIN.replace('\n', '\n  ')}- instruction: 7\n  agent: { harness: pi }\n`)
    await writeFile(other, PLAIN)
    const check = async () => [{ path: ['evaluator', 'strategy'], message: 'is unknown' }]
    await expect(loadTaskFiles([one, other], TaskRequest, check)).rejects.toMatchObject({
      code: 'config.invalid',
      message: expect.stringMatching(
        /one\.yaml: \ntasks\[0\]\.evaluator\.strategy: is unknown\ntasks\[1\]\.instruction: .*\n.*other\.yaml: \nevaluator\.strategy: is unknown$/,
      ),
    })
  })

  test.each([
    ['empty.yaml', '', 'the file has no task'],
    ['empty.jsonl', '\n', 'the file has no task'],
    ['text.yaml', 'hello', 'expected object'],
    ['broken.yaml', 'a: [1', 'Flow sequence'],
    ['broken.jsonl', '{}\n{"a"\n', 'line 2:'],
  ])('%s', async (name, text, problem) => {
    expect(await problemOf(name, text)).toContain(problem)
  })

  test('a missing file', async () => {
    await expect(loadTasks(join(dir, 'none.yaml'))).rejects.toMatchObject({ code: 'config.invalid' })
  })
})

test.each(['ask.yaml', 'hello.yaml'])('examples/tasks/%s is a task', async (name) => {
  expect(await loadTasks(fileURLToPath(new URL(`../../../examples/tasks/${name}`, import.meta.url)))).toHaveLength(1)
})
