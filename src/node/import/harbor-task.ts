import { lstat, readdir, readFile } from 'node:fs/promises'
import { basename, join, posix, resolve } from 'node:path'
import type * as z from 'zod'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import { TaskRequest, type AgentSpec } from '../../model/task.ts'
import { networkOf, parseHarborConfig, type HarborConfig } from './harbor-config.ts'
import { interpretDockerfile, type InterpretedEnvironment } from './harbor-dockerfile.ts'
import type { RuntimeCapabilities } from '../sandbox/runtimes/runtime.ts'

/** What a folder does not say: who works on the task, and where. */
export interface HarborOptions {
  agent: z.input<typeof AgentSpec>
  /** Where it will run. Without an image the machine's own programs take the place of those of the task's. */
  runtime: { kind: string; capabilities: Pick<RuntimeCapabilities, 'images'> }
  /** Instead of the task's own; for one that was built from its Dockerfile. */
  image?: string
  /** Instead of the task's own. */
  workdir?: string
  /** Values of the variables that the task's environment names; undefined when there is none. */
  variable?: (name: string) => string | undefined
  /** For all that a task may say besides. */
  more?: Partial<Omit<z.input<typeof TaskRequest>, 'task_id' | 'instruction' | 'agent' | 'runtime' | 'evaluator'>>
}

/** What grading may take besides the tests: copying, and sandboxes. */
const BESIDES_TESTS_SECONDS = 300

/** A comment at the top that marks a file as one not to be trained on; no part of what is asked. */
const CANARY = /^(?:<!--.*canary.*-->|#.*canary.*)$/i
const VARIABLE = /^\$\{([^}:]+)(?::-(.*))?\}$/s

/** All tasks below a folder, by name; the folder may be a task itself. Throws `config.invalid` with every problem of each. */
export async function loadHarborTasks(dir: string, options: HarborOptions): Promise<TaskRequest[]> {
  const folders = (await isThere(join(dir, 'task.toml'))) ? [dir] : await taskFolders(dir)
  if (folders.length === 0) throw invalid([`${dir}: neither it nor a folder in it has a task.toml`])
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
  if (!(await isThere(join(dir, 'tests', 'test.sh')))) problems.push('there is no tests/test.sh')
  if ('problems' in read) return said(dir, [...read.problems, ...problems])
  const environment = await readEnvironment(dir, read.config, options)
  if ('problems' in environment) return said(dir, [...problems, ...environment.problems])
  if (problems.length > 0) return said(dir, problems)
  const task = TaskRequest.safeParse(toRequest(dir, withoutCanary(instruction!), read.config, environment, options))
  if (task.success) return { task: task.data }
  return said(
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
  { runtime, image: built, workdir: given, variable }: HarborOptions,
): Promise<Environment | { problems: string[] }> {
  const { docker_image: published, workdir: wanted, env: values } = config.environment
  const context = join(dir, 'environment')
  const problems: string[] = []
  if (await isThere(join(context, 'docker-compose.yaml'))) {
    problems.push('environment/docker-compose.yaml is not supported: a session has one sandbox')
  }
  const image = runtime.capabilities.images === 'required' ? (built ?? published) : built
  if (image == null && runtime.capabilities.images === 'required') {
    problems.push(
      `it names no docker_image, and ${runtime.kind} needs one; build it with "docker build -t NAME ${context}" and give the name as image`,
    )
  }
  const dockerfile = await readText(join(context, 'Dockerfile'))
  const found =
    dockerfile === undefined
      ? { env: {}, prepare: [], problems: [] }
      : await interpretDockerfile(dockerfile, context, { stepsMatter: image == null })
  problems.push(...found.problems)
  const workdir = given ?? wanted ?? found.workdir
  if (workdir === undefined) problems.push('it names no workdir: neither task.toml nor a Dockerfile says one')
  const env: Record<string, string> = image == null ? { ...found.env } : {}
  for (const [key, value] of Object.entries(values)) {
    const [, name, fallback] = VARIABLE.exec(value) ?? []
    const resolved = name === undefined ? value : (variable?.(name) ?? fallback)
    if (resolved === undefined) problems.push(`environment.env.${key} wants ${name}, which is not set`)
    else env[key] = resolved
  }
  if (problems.length > 0) return { problems }
  return { ...(image == null ? {} : { image }), workdir: workdir!, env, prepare: image == null ? found.prepare : [] }
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
    ...(config.agent.timeout_sec == null ? {} : { timeout_seconds: config.agent.timeout_sec }),
    budgets: { init, evaluate: config.verifier.timeout_sec + BESIDES_TESTS_SECONDS },
    ...more,
    runtime: {
      backend: runtime.kind,
      ...(environment.image === undefined ? {} : { image: environment.image }),
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
        // In an environment of their own the tests see what the task calls its artifacts, and nothing else of the agent.
        paths:
          config.verifier.environment_mode === 'separate' ? ['/logs/artifacts', ...artifacts] : ['.', ...artifacts],
        ...ours,
      },
    },
    metadata: { ...metadata, ...more?.metadata, harbor: { dir, name: config.task?.name ?? basename(dir) } },
  }
}

/** What TOML has besides JSON, dates, as text. */
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
    throw invalid([`${dir}: ${errnoOf(error) === 'ENOENT' ? 'there is no such folder' : String(error)}`])
  })
  const names = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name)
  const folders = names.toSorted().map((name) => join(dir, name))
  const isTask = await Promise.all(folders.map((folder) => isThere(join(folder, 'task.toml'))))
  return folders.filter((_, index) => isTask[index])
}

function repeated(tasks: readonly TaskRequest[]): string[] {
  const counts = Map.groupBy(tasks, ({ task_id: id }) => id)
  return [...counts].filter(([, same]) => same.length > 1).map(([id, same]) => `${same.length} tasks are called ${id}`)
}

async function readText(path: string): Promise<string | undefined> {
  return (await isThere(path)) ? readFile(path, 'utf8') : undefined
}

async function isThere(path: string): Promise<boolean> {
  return (await lstat(path).catch(() => undefined)) !== undefined
}

function said(dir: string, problems: readonly string[]): { problems: string[] } {
  return { problems: problems.map((problem) => `${dir}: ${problem}`) }
}

function invalid(problems: readonly string[]): RolloutError {
  return new RolloutError('config.invalid', problems.join('\n'))
}
