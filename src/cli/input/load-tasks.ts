import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { parseAllDocuments } from 'yaml'
import type * as z from 'zod'
import { orInvalid } from '../../config/or-invalid.ts'
import { isTree } from '../../lib/fs/merge-trees.ts'
import { RolloutError } from '../../model/failure.ts'
import { TaskRequest, type PrepareAction } from '../../model/task.ts'
import { renderProblem, toTaskProblems, type TaskProblem } from '../../model/task-problem.ts'
import { resolveAgentPaths } from './load-agent.ts'
import { PATH_KEYS } from '../../node/check-task.ts'

type Check<T> = (task: T) => Promise<TaskProblem[]>

/**
 * Loads tasks from YAML or JSON files: one task, a list, several documents, or one task per line. Relative paths start at the
 * folder of the file. Throws `config.invalid` with all problems of all files.
 */
export async function loadTaskFiles<T extends TaskRequest = TaskRequest>(
  files: readonly string[],
  /** Extends the schema of a task, such as with fields that only a server accepts. */
  schema?: z.ZodType<T>,
  check?: Check<T>,
): Promise<T[]> {
  const problems: string[] = []
  const loaded = await Promise.all(
    files.map((file) =>
      loadTasks(file, schema, check).catch((error: unknown) => {
        if (!(error instanceof RolloutError)) throw error
        problems.push(error.message)
        return []
      }),
    ),
  )
  if (problems.length > 0) throw new RolloutError('config.invalid', problems.toSorted().join('\n'))
  return loaded.flat()
}

/** Like `loadTaskFiles()`, for one file. */
export async function loadTasks<T extends TaskRequest = TaskRequest>(
  file: string,
  schema: z.ZodType<T> = TaskRequest as unknown as z.ZodType<T>,
  check: Check<T> = async () => [],
): Promise<T[]> {
  const values = await parseFile(file, await orInvalid(`Tasks in ${file}`, () => readFile(file, 'utf8')))
  const read = await Promise.all(
    values.map(async (value, index) => {
      const named = isTree(value) ? { task_id: nameOf(file, index, values.length), ...value } : value
      const parsed = schema.safeParse(named)
      if (!parsed.success) return { problems: toTaskProblems(parsed.error) }
      const task = fromFile(parsed.data, dirname(file))
      return { task, problems: await check(task) }
    }),
  )
  const lines = read.flatMap(({ problems }, index) =>
    problems.map((problem) => renderProblem(problem, values.length === 1 ? [] : ['tasks', index])),
  )
  if (lines.length > 0) throw invalid(file, `\n${lines.join('\n')}`)
  if (read.length === 0) throw invalid(file, 'the file has no task')
  return read.flatMap(({ task }) => task ?? [])
}

async function parseFile(file: string, text: string): Promise<unknown[]> {
  if (file.endsWith('.jsonl')) {
    const lines = text.split('\n').filter((line) => line.trim() !== '')
    const parse = (line: string, index: number): Promise<unknown> =>
      orInvalid(`Tasks in ${file}: line ${index + 1}`, () => JSON.parse(line))
    return Promise.all(lines.map(parse))
  }
  const documents = parseAllDocuments(text)
  const errors = documents.flatMap((document) => document.errors.map(({ message }) => message))
  if (errors.length > 0) throw invalid(file, errors.join('\n'))
  return documents.flatMap((document) => {
    const value: unknown = document.toJS()
    return Array.isArray(value) ? (value as unknown[]) : value == null ? [] : [value]
  })
}

/** Default task_id: the name of the file. */
function nameOf(file: string, index: number, of: number): string {
  const name = file
    .split('/')
    .at(-1)!
    .replace(/\.[a-z]+$/, '')
  return of === 1 ? name : `${name}-${index + 1}`
}

function fromFile<T extends TaskRequest>(task: T, base: string): T {
  const at = (path: string): string => resolve(base, path)
  const step = (action: PrepareAction): PrepareAction => {
    if (action.type === 'upload_file' || action.type === 'upload_dir') return { ...action, source: at(action.source) }
    return action
  }
  const { runtime, agent, evaluator } = task
  return {
    ...task,
    runtime: runtime && {
      ...runtime,
      prepare: runtime.prepare.map(step),
      eval_prepare: runtime.eval_prepare && runtime.eval_prepare.map(step),
      import_path: runtime.import_path && at(runtime.import_path),
    },
    agent: resolveAgentPaths(agent, base),
    evaluator: evaluator && {
      ...evaluator,
      strategy: evaluator.strategy.includes('/') ? at(evaluator.strategy) : evaluator.strategy,
      config: pathsAt(evaluator.config, at) as typeof evaluator.config,
    },
  }
}

function pathsAt(value: unknown, at: (path: string) => string): unknown {
  if (Array.isArray(value)) return value.map((entry) => pathsAt(entry, at))
  if (!isTree(value)) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, entry]) => [
      key,
      PATH_KEYS.has(key) && typeof entry === 'string' ? at(entry) : pathsAt(entry, at),
    ]),
  )
}

function invalid(file: string, problem: string): RolloutError {
  return new RolloutError('config.invalid', `Tasks in ${file}: ${problem}`)
}
