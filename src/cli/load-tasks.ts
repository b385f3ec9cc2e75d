import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { parseAllDocuments } from 'yaml'
import * as z from 'zod'
import { isTree } from '../lib/merge-trees.ts'
import { RolloutError } from '../model/failure.ts'
import { TaskRequest, type PrepareAction } from '../model/task.ts'

/**
 * Tasks of a YAML or JSON file: one, a list of them, one document each, or one a line. Relative paths are meant from where
 * the file is. Throws `config.invalid` with everything that is wrong.
 */
export async function loadTasks<T extends TaskRequest = TaskRequest>(
  file: string,
  /** More than a task has by itself, such as what a server takes besides. */
  schema: z.ZodType<T> = TaskRequest as unknown as z.ZodType<T>,
): Promise<T[]> {
  const values = parseFile(file, await readText(file))
  const problems: string[] = []
  const tasks = values.flatMap((value, index) => {
    const parsed = schema.safeParse(isTree(value) ? { task_id: nameOf(file, index, values.length), ...value } : value)
    if (parsed.success) return [fromFile(parsed.data, dirname(file))]
    problems.push(`${values.length === 1 ? '' : `task ${index + 1}:\n`}${z.prettifyError(parsed.error)}`)
    return []
  })
  if (problems.length > 0) throw invalid(file, `\n${problems.join('\n')}`)
  if (tasks.length === 0) throw invalid(file, 'there is no task in it')
  return tasks
}

async function readText(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    throw invalid(file, (error as Error).message, error)
  }
}

function parseFile(file: string, text: string): unknown[] {
  if (file.endsWith('.jsonl')) {
    return text
      .split('\n')
      .filter((line) => line.trim() !== '')
      .map((line, index) => parseLine(file, line, index + 1))
  }
  const documents = parseAllDocuments(text)
  const errors = documents.flatMap((document) => document.errors.map(({ message }) => message))
  if (errors.length > 0) throw invalid(file, errors.join('\n'))
  return documents.flatMap((document) => {
    const value: unknown = document.toJS()
    return Array.isArray(value) ? (value as unknown[]) : value == null ? [] : [value]
  })
}

function parseLine(file: string, line: string, number: number): unknown {
  try {
    return JSON.parse(line)
  } catch (error) {
    throw invalid(file, `line ${number}: ${(error as Error).message}`, error)
  }
}

/** A task without a name is called after its file. */
function nameOf(file: string, index: number, of: number): string {
  const name = file
    .split('/')
    .at(-1)!
    .replace(/\.[a-z]+$/, '')
  return of === 1 ? name : `${name}-${index + 1}`
}

/** Keys of evaluators' configs that are paths of this machine. */
export const PATH_KEYS: ReadonlySet<string> = new Set(['task_dir', 'tests_dir', 'source'])

function fromFile<T extends TaskRequest>(task: T, base: string): T {
  const at = (path: string): string => resolve(base, path)
  const step = (action: PrepareAction): PrepareAction => {
    if (action.type === 'upload_file' || action.type === 'upload_dir') return { ...action, source: at(action.source) }
    return action
  }
  const { runtime, agent, evaluator } = task
  return {
    ...task,
    ...(runtime == null
      ? {}
      : {
          runtime: {
            ...runtime,
            prepare: runtime.prepare.map(step),
            ...(runtime.eval_prepare == null ? {} : { eval_prepare: runtime.eval_prepare.map(step) }),
            ...(runtime.import_path == null ? {} : { import_path: at(runtime.import_path) }),
          },
        }),
    agent: {
      ...agent,
      ...(agent.skills_path == null ? {} : { skills_path: at(agent.skills_path) }),
      ...(agent.import_path == null ? {} : { import_path: at(agent.import_path) }),
    },
    ...(evaluator == null
      ? {}
      : {
          evaluator: {
            ...evaluator,
            strategy: evaluator.strategy.includes('/') ? at(evaluator.strategy) : evaluator.strategy,
            config: pathsAt(evaluator.config, at) as typeof evaluator.config,
          },
        }),
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

function invalid(file: string, problem: string, cause?: unknown): RolloutError {
  return new RolloutError('config.invalid', `Tasks in ${file}: ${problem}`, { cause })
}
