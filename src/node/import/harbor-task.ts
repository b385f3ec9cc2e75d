import { lstat, readdir, readFile } from 'node:fs/promises'
import { basename, join, posix, resolve } from 'node:path'
import type * as z from 'zod'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import { TaskRequest, type AgentSpec } from '../../model/task.ts'
import { networkOf, parseHarborConfig, type HarborConfig } from './harbor-config.ts'
import { interpretDockerfile, type InterpretedEnvironment } from './harbor-dockerfile.ts'
import type { RuntimeCapabilities } from '../sandbox/runtimes/runtime.ts'

/** Settings that are not part of a Harbor task: the agent and the runtime. */
export interface HarborOptions {
  agent: z.input<typeof AgentSpec>
  /** The runtime of the task. A runtime without images uses the programs of this machine instead of the task's image. */
  runtime: { kind: string; capabilities: Pick<RuntimeCapabilities, 'images'> }
  /** Replaces the task's image, by an image that was built from its Dockerfile. */
  image?: string
  /** Replaces the task's workdir. */
  workdir?: string
  /** Returns the values of variables that the task's environment refers to; undefined if a variable is not set. */
  variable?: (name: string) => string | undefined
  /** Other fields of the task request. */
  more?: Partial<Omit<z.input<typeof TaskRequest>, 'task_id' | 'instruction' | 'agent' | 'runtime' | 'evaluator'>>
}

/** Additional time for grading, for copies and sandbox starts. */
const GRADING_OVERHEAD_SECONDS = 300

/** A comment at the top that excludes a file from training data; it is not part of the instruction. */
const CANARY = /^(?:<!--.*canary.*-->|#.*canary.*)$/i
const VARIABLE = /^\$\{([^}:]+)(?::-(.*))?\}$/s

/** Loads all tasks of a folder, ordered by name; the folder may be a task itself. Throws `config.invalid` with all problems. */
export async function loadHarborTasks(dir: string, options: HarborOptions): Promise<TaskRequest[]> {
  const folders = (await pathExists(join(dir, 'task.toml'))) ? [dir] : await taskFolders(dir)
  if (folders.length === 0) throw invalid([`${dir}: neither this folder nor a folder in it has a task.toml`])
  const loaded = await Promise.all(folders.map((folder) => readTask(folder, options)))
  const problems = loaded.flatMap((task) => ('problems' in task ? task.problems : []))
  const tasks = loaded.flatMap((task) => ('task' in task ? [task.task] : []))
  problems.push(...repeated(tasks))
  if (problems.length > 0) throw invalid(problems)
  return tasks
}

export async function loadHarborTask(dir: string, options: HarborOptions): Promise<TaskRequest> {
  const loaded = await readTask(dir, options)
  if ('problems' in loaded) throw invalid(loaded.problems)
  return loaded.task
}

type Loaded = { task: TaskRequest } | { problems: string[] }

async function readTask(given: string, options: HarborOptions): Promise<Loaded> {
  const dir = resolve(given)
  const problems: string[] = []
  const text = await readText(join(dir, 'task.toml'))
  const read = text === undefined ? { problems: ['there is no task.toml'] } : parseHarborConfig(text)
  const instruction = await readText(join(dir, 'instruction.md'))
  if (instruction === undefined) problems.push('there is no instruction.md')
  if (!(await pathExists(join(dir, 'tests', 'test.sh')))) problems.push('there is no tests/test.sh')
  if ('problems' in read) return failed(dir, [...read.problems, ...problems])
  const environment = await readEnvironment(dir, read.config, options)
  if ('problems' in environment) return failed(dir, [...problems, ...environment.problems])
  if (problems.length > 0) return failed(dir, problems)
  const task = TaskRequest.safeParse(toRequest(dir, withoutCanary(instruction!), read.config, environment, options))
  if (task.success) return { task: task.data }
  return failed(
    dir,
    task.error.issues.map(({ path, message }) => `${path.join('.')}: ${message}`),
  )
}

interface Environment extends InterpretedEnvironment {
  image?: string
}

async function readEnvironment(
  dir: string,
  config: HarborConfig,
  { runtime, image: built, workdir: override, variable }: HarborOptions,
): Promise<Environment | { problems: string[] }> {
  const { docker_image: published, workdir: configured, env: values } = config.environment
  const context = join(dir, 'environment')
  const problems: string[] = []
  if (await pathExists(join(context, 'docker-compose.yaml'))) {
    problems.push('environment/docker-compose.yaml is not supported: a session has one sandbox')
  }
  const image = runtime.capabilities.images === 'required' ? (built ?? published) : built
  if (image == null && runtime.capabilities.images === 'required') {
    problems.push(
      `it has no docker_image, but ${runtime.kind} needs one; build it with "docker build -t NAME ${context}" and set image to the name`,
    )
  }
  const dockerfile = await readText(join(context, 'Dockerfile'))
  const found =
    dockerfile === undefined
      ? { env: {}, prepare: [], problems: [] }
      : await interpretDockerfile(dockerfile, context, { stepsMatter: image == null })
  problems.push(...found.problems)
  const workdir = override ?? configured ?? found.workdir
  if (workdir === undefined) problems.push('neither task.toml nor a Dockerfile sets the workdir')
  const env: Record<string, string> = image == null ? { ...found.env } : {}
  for (const [key, value] of Object.entries(values)) {
    const [, name, fallback] = VARIABLE.exec(value) ?? []
    const resolved = name === undefined ? value : (variable?.(name) ?? fallback)
    if (resolved === undefined) problems.push(`environment.env.${key} refers to ${name}, which is not set`)
    else env[key] = resolved
  }
  if (problems.length > 0) return { problems }
  return { image: image ?? undefined, workdir: workdir!, env, prepare: image == null ? found.prepare : [] }
}

function toRequest(
  dir: string,
  instruction: string,
  config: HarborConfig,
  environment: Environment,
  { agent, runtime, more }: HarborOptions,
): z.input<typeof TaskRequest> {
  const {
    cpus,
    memory_mb: memory,
    storage_mb: storage,
    gpus,
    mcp_servers: servers,
    build_timeout_sec: init,
  } = config.environment
  const { polar, ...metadata } = plain(config.metadata)
  const ours = (polar as { evaluator?: Record<string, unknown> } | undefined)?.evaluator
  const artifacts = config.artifacts.map(({ source }) => posix.resolve(environment.workdir!, source))
  return {
    task_id: config.task?.name ?? basename(dir),
    instruction,
    timeout_seconds: config.agent.timeout_sec ?? undefined,
    budgets: { init, evaluate: config.verifier.timeout_sec + GRADING_OVERHEAD_SECONDS },
    ...more,
    runtime: {
      backend: runtime.kind,
      image: environment.image,
      workdir: environment.workdir,
      env: environment.env,
      prepare: environment.prepare,
      cpus,
      memory_mb: memory,
      storage_mb: storage,
      gpus: gpus ?? 0,
      ...networkOf(config),
    },
    agent: {
      ...agent,
      mcp_servers: [
        ...servers.map(({ name, transport, url, command, args }) => ({ name, transport, url, command, args })),
        ...(agent.mcp_servers ?? []),
      ],
    },
    evaluator: {
      strategy: 'harbor',
      config: {
        task_dir: dir,
        verifier_timeout_seconds: config.verifier.timeout_sec,
        env: config.verifier.env,
        // Tests in a separate environment get only the task's artifacts from the agent.
        paths:
          config.verifier.environment_mode === 'separate' ? ['/logs/artifacts', ...artifacts] : ['.', ...artifacts],
        ...ours,
      },
    },
    metadata: { ...metadata, ...more?.metadata, harbor: { dir, name: config.task?.name ?? basename(dir) } },
  }
}

/** Converts TOML dates to text; JSON has no dates. */
function plain(metadata: Record<string, unknown>): Record<string, unknown> {
  return JSON.parse(JSON.stringify(metadata)) as Record<string, unknown>
}

function withoutCanary(text: string): string {
  const lines = text.split('\n')
  const first = lines.findIndex((line) => !CANARY.test(line.trim()))
  return first <= 0
    ? text
    : lines
        .slice(first)
        .join('\n')
        .replace(/^\s*\n/, '')
}

async function taskFolders(dir: string): Promise<string[]> {
  const entries = await readdir(dir, { withFileTypes: true }).catch((error: unknown) => {
    throw invalid([`${dir}: ${errnoOf(error) === 'ENOENT' ? 'the folder does not exist' : String(error)}`])
  })
  const names = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name)
  const folders = names.toSorted().map((name) => join(dir, name))
  const isTask = await Promise.all(folders.map((folder) => pathExists(join(folder, 'task.toml'))))
  return folders.filter((_, index) => isTask[index])
}

function repeated(tasks: readonly TaskRequest[]): string[] {
  const counts = Map.groupBy(tasks, ({ task_id: id }) => id)
  return [...counts]
    .filter(([, same]) => same.length > 1)
    .map(([id, same]) => `${same.length} tasks have the name ${id}`)
}

async function readText(path: string): Promise<string | undefined> {
  return (await pathExists(path)) ? readFile(path, 'utf8') : undefined
}

async function pathExists(path: string): Promise<boolean> {
  return (await lstat(path).catch(() => undefined)) !== undefined
}

function failed(dir: string, problems: readonly string[]): { problems: string[] } {
  return { problems: problems.map((problem) => `${dir}: ${problem}`) }
}

function invalid(problems: readonly string[]): RolloutError {
  return new RolloutError('config.invalid', problems.join('\n'))
}
