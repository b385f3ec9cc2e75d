import { resolve } from 'node:path'
import { presetNamed } from '../../compose/harness-folders.ts'
import type { OpenNode } from '../../compose/open-node.ts'
import { allowModules } from '../../lib/process/load-module.ts'
import { RuntimeSpec, TaskRequest } from '../../model/task.ts'
import { checkTask } from '../../node/check-task.ts'
import { loadHarborTasks } from '../../node/import/harbor-task.ts'
import { toSweTask } from '../../node/import/swe-row.ts'
import { option, usageError, type FlagValues } from '../command.ts'
import { loadSweRows } from './load-swe-rows.ts'
import { loadTaskFiles } from './load-tasks.ts'

/** Flags of commands that run tasks on this machine: where the tasks come from. */
export const TASK_FLAGS = {
  harbor: option('DIR', 'Folder of a Harbor task, or of several; may be repeated', { multiple: true }),
  swe: option('FILE', 'JSONL file of SWE-bench rows; may be repeated', { multiple: true }),
  harness: option('NAME', 'Harness for Harbor tasks and SWE-bench rows (default: pi)'),
  image: option('IMAGE', 'Image built from the Dockerfile of the Harbor tasks, or template of the images of rows'),
  repositories: option('PREFIX', 'Prefix of the repositories of rows, for runtimes without images', {
    default: 'https://github.com/',
  }),
  'allow-module': option(
    'FILE',
    'Module of a builder, evaluator, harness or runtime that tasks may load; may be repeated',
    { multiple: true },
  ),
} as const

export interface TaskSources {
  files: readonly string[]
  harbor: readonly string[]
  swe: readonly string[]
  harness: string
  image: string | undefined
  repositories: string
  /** Real paths of the modules that tasks may load. */
  modules: readonly string[]
}

/** Throws `config.invalid` for invalid flags, and with every problem of every task file, before anything starts. */
export async function toTaskSources(
  command: string,
  files: readonly string[],
  flags: FlagValues<typeof TASK_FLAGS>,
): Promise<TaskSources> {
  const { harbor, swe, image, repositories } = flags
  const needsHarness = harbor.length > 0 || swe.length > 0
  if (files.length === 0 && !needsHarness) {
    throw usageError(command, `name the tasks to run, as in: polar ${command} task.yaml`)
  }
  for (const flag of ['harness', 'image'] as const) {
    if (flags[flag] !== undefined && !needsHarness) throw usageError(command, `--${flag} needs --harbor or --swe`)
  }
  const sources: TaskSources = {
    files,
    harbor,
    swe,
    harness: flags.harness ?? 'pi',
    image,
    repositories,
    modules: await allowModules(flags['allow-module'].map((path) => resolve(path))),
  }
  if (needsHarness) presetNamed(sources.harness)
  await readTaskFiles(sources)
  return sources
}

/** Throws `config.invalid` with every problem of every task. */
async function readTaskFiles({ files, modules }: TaskSources): Promise<TaskRequest[]> {
  const secret = (name: string): string | undefined => process.env[name]
  return loadTaskFiles(
    files.map((file) => resolve(file)),
    TaskRequest,
    (task) => checkTask(task, { modules, hasFiles: true, secret }),
  )
}

/**
 * Reads the tasks of all sources. Throws `config.invalid` if two tasks have the same id. `node` is required for Harbor tasks
 * and rows, whose tasks depend on the runtime.
 */
export async function readTasks(
  command: string,
  sources: TaskSources,
  node?: Pick<OpenNode, 'runtimes'>,
): Promise<TaskRequest[]> {
  const tasks = await readTaskFiles(sources)
  const { harbor, swe, harness, image, repositories } = sources
  if (node !== undefined && (harbor.length > 0 || swe.length > 0)) {
    const { runtime } = await node.runtimes.open(image === undefined ? undefined : RuntimeSpec.parse({ image }))
    const options = {
      agent: { harness: presetNamed(harness).name },
      runtime,
      image,
      more: { builder: { strategy: 'prefix_merging' } },
    }
    const variable = (name: string): string | undefined => process.env[name]
    for (const folder of harbor) tasks.push(...(await loadHarborTasks(resolve(folder), { ...options, variable })))
    for (const file of swe) {
      tasks.push(...(await loadSweRows(resolve(file), (row) => toSweTask(row, { ...options, repositories }))))
    }
  }
  const ids = tasks.map(({ task_id }) => task_id)
  const duplicate = ids.find((id, index) => ids.indexOf(id) < index)
  if (duplicate !== undefined) throw usageError(command, `two tasks have the task_id ${duplicate}`)
  return tasks
}
