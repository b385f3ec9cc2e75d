import type { Stats } from 'node:fs'
import { stat } from 'node:fs/promises'
import { isAbsolute } from 'node:path'
import { errnoOf } from '../lib/fs/errno.ts'
import { isTree } from '../lib/fs/merge-trees.ts'
import { RolloutError } from '../model/failure.ts'
import type { PrepareAction, TaskRequest } from '../model/task.ts'
import type { TaskProblem } from '../model/task-problem.ts'
import { createBuilder } from '../trajectory/create-builder.ts'
import { createEvaluator, evaluatorModules } from '../trajectory/create-evaluator.ts'
import { presetOf } from './harness/find-runnable.ts'
import { planLaunch } from './harness/harness-launch.ts'
import { loadHarness } from './harness/load-harness.ts'
import { loadRuntime } from './sandbox/load-runtime.ts'
import { runtimes } from './sandbox/runtimes/index.ts'

export interface TaskCheckOptions {
  /** Real paths of the modules whose code is trusted. Absent: another machine decides, and modules are not checked. */
  modules?: readonly string[]
  /** Whether the files that tasks name are on this machine. */
  hasFiles: boolean
  /** Secrets of evaluators. Absent: they are on another machine, and not checked. */
  secret?: (name: string) => string | undefined
}

/** Keys of evaluators' configs that are paths of the machine that runs the task. */
export const PATH_KEYS: ReadonlySet<string> = new Set(['task_dir', 'tests_dir', 'source'])

type Path = TaskProblem['path']

/** Returns all problems of a task that can be found without running it. */
export async function checkTask(task: TaskRequest, options: TaskCheckOptions): Promise<TaskProblem[]> {
  const { agent, builder, evaluator, runtime } = task
  const { modules } = options
  const allowed = modules ?? []
  const checks: Promise<TaskProblem[]>[] = []
  const check = (path: Path, work: () => unknown): void => void checks.push(problemsOf(path, work))
  if (agent.import_path == null || modules !== undefined) check(['agent'], () => checkAgent(task, allowed))
  if (!builder.strategy.includes('/') || modules !== undefined)
    check(['builder', 'strategy'], () => createBuilder(builder, { allowed }))
  if (evaluator != null && (evaluatorModules(evaluator).size === 0 || modules !== undefined)) {
    const { secret = () => 'unknown' } = options
    const deps = { now: () => 0, secret, mayCall: () => true }
    check(['evaluator', 'strategy'], () => createEvaluator(evaluator, { allowed, deps }))
  }
  const { backend, import_path: module } = runtime ?? {}
  if (module != null && modules !== undefined)
    check(['runtime', 'import_path'], () => loadRuntime(module, { allowed: modules }))
  if (module == null && backend != null && !runtimes.kinds.includes(backend))
    checks.push(
      Promise.resolve([
        { path: ['runtime', 'backend'], message: `"${backend}" is none of ${runtimes.kinds.join(', ')}.` },
      ]),
    )
  if (options.hasFiles) for (const file of filesOf(task)) checks.push(checkFile(file))
  return (await Promise.all(checks)).flat()
}

/** The harness itself validates settings, MCP servers and skills when it is configured. */
async function checkAgent({ agent, instruction }: TaskRequest, allowed: readonly string[]): Promise<void> {
  const harness =
    agent.import_path == null ? presetOf(agent.harness!) : await loadHarness(agent.import_path, { allowed })
  const environment = { home: '/home/agent', workdir: '/workspace', env: {} }
  const model = { model: agent.model_name ?? 'model', contextTokens: 32_768, images: false }
  const gateway = { sessionId: 'ses_check', baseUrl: 'http://127.0.0.1:1', key: 'polar-check' }
  planLaunch(harness, environment, { ...gateway, ...model, instruction, agent })
}

const FIELD = /^(?<field>(?:agent|builder|evaluator|runtime)(?:\.[\w-]+|\[\d+\])*): (?<message>[\s\S]*)$/

/** Splits the message of `config.invalid` into one problem per line. A line that names no field refers to `path`. */
async function problemsOf(path: Path, work: () => unknown): Promise<TaskProblem[]> {
  try {
    await work()
    return []
  } catch (error) {
    if (!(error instanceof RolloutError) || error.code !== 'config.invalid') throw error
    return error.message.split('\n').map((line) => {
      const { field, message } = FIELD.exec(line)?.groups ?? {}
      if (field === undefined || message === undefined) return { path, message: line }
      return {
        path: field
          .split(/[.[\]]+/)
          .filter((step) => step !== '')
          .map(toStep),
        message,
      }
    })
  }
}

function toStep(text: string): string | number {
  return /^\d+$/.test(text) ? Number(text) : text
}

// --- files -----------------------------------------------------------------------------------------------------------

interface NamedFile {
  path: Path
  file: string
  /** Absent: a file or a folder. */
  kind?: 'file' | 'folder'
}

function filesOf({ runtime, agent, evaluator }: TaskRequest): NamedFile[] {
  const steps = (name: string, actions: readonly PrepareAction[]): NamedFile[] =>
    actions.flatMap((action, index) => fileOfStep(action, ['runtime', name, index]))
  return [
    ...steps('prepare', runtime?.prepare ?? []),
    ...steps('eval_prepare', runtime?.eval_prepare ?? []),
    ...(agent.skills_path == null
      ? []
      : [{ path: ['agent', 'skills_path'], file: agent.skills_path, kind: 'folder' as const }]),
    ...filesIn(evaluator?.config, ['evaluator', 'config']),
  ]
}

function fileOfStep(action: PrepareAction, path: Path): NamedFile[] {
  switch (action.type) {
    case 'upload_file':
      return [{ path: [...path, 'source'], file: action.source, kind: 'file' }]
    case 'upload_dir':
      return [{ path: [...path, 'source'], file: action.source, kind: 'folder' }]
    case 'checkout':
      return isAbsolute(action.repository) ? [{ path: [...path, 'repository'], file: action.repository }] : []
    case 'exec':
      return []
  }
}

function filesIn(value: unknown, path: Path): NamedFile[] {
  if (Array.isArray(value)) return value.flatMap((entry: unknown, index) => filesIn(entry, [...path, index]))
  if (!isTree(value)) return []
  return Object.entries(value).flatMap(([key, entry]) =>
    PATH_KEYS.has(key) && typeof entry === 'string'
      ? [{ path: [...path, key], file: entry }]
      : filesIn(entry, [...path, key]),
  )
}

async function checkFile({ path, file, kind }: NamedFile): Promise<TaskProblem[]> {
  if (!isAbsolute(file)) return [{ path, message: `${file} is not an absolute path.` }]
  let found: Stats
  try {
    found = await stat(file)
  } catch (error) {
    const isMissing = ['ENOENT', 'ENOTDIR'].includes(errnoOf(error) ?? '')
    return [{ path, message: isMissing ? `${file} does not exist.` : `${file} cannot be read: ${errnoOf(error)}.` }]
  }
  if (kind === 'file' && found.isDirectory()) return [{ path, message: `${file} is a folder; use upload_dir.` }]
  if (kind === 'folder' && !found.isDirectory()) return [{ path, message: `${file} is not a folder.` }]
  return []
}
