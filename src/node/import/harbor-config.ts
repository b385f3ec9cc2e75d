import { parse, TomlError } from 'smol-toml'
import * as z from 'zod'

/**
 * The part of a Harbor `task.toml` that polar reads. The older names `version`, `memory`, `storage` and `allow_internet`
 * are accepted and converted to the newer fields.
 */
const Seconds = z.number().positive()
const Env = z.record(z.string(), z.string()).default({})
const NetworkMode = z.enum(['no-network', 'public', 'allowlist'])
const Phase = { network_mode: NetworkMode.nullish(), allowed_hosts: z.array(z.string()).nullish() }
const User = z.union([z.string(), z.int()]).nullish()

/** A size in MB: '2G' is 2048. K, M and G are powers of 1024. */
const Size = z
  .string()
  .trim()
  .regex(/^\d+(\.\d+)?[KMG]$/i, 'must be like 512M or 2G')
  .transform((text) => {
    const number = Number(text.slice(0, -1))
    const unit = text.at(-1)!.toUpperCase()
    return Math.trunc(unit === 'G' ? number * 1024 : unit === 'M' ? number : number / 1024)
  })

const McpServer = z.looseObject({
  name: z.string().min(1),
  transport: z
    .enum(['stdio', 'sse', 'streamable-http', 'http'])
    .default('sse')
    .transform((name) => (name === 'http' ? 'streamable-http' : name)),
  url: z.string().nullish(),
  command: z.string().nullish(),
  args: z.array(z.string()).default([]),
  headers: z.record(z.string(), z.string()).default({}),
})

const Environment = z
  .looseObject({
    ...Phase,
    build_timeout_sec: Seconds.default(600),
    docker_image: z.string().min(1).nullish(),
    os: z
      .string()
      .default('linux')
      .transform((name) => name.toLowerCase()),
    cpus: z.number().positive().nullish(),
    memory_mb: z.int().positive().nullish(),
    storage_mb: z.int().positive().nullish(),
    memory: Size.nullish(),
    storage: Size.nullish(),
    gpus: z.int().min(0).nullish(),
    tpu: z.unknown().optional(),
    mcp_servers: z.array(McpServer).default([]),
    env: Env,
    skills_dir: z.string().nullish(),
    healthcheck: z.unknown().optional(),
    workdir: z.string().startsWith('/').nullish(),
    allow_internet: z.boolean().nullish(),
  })
  .transform(({ memory, storage, allow_internet: internet, ...rest }) => ({
    ...rest,
    memory_mb: rest.memory_mb ?? memory,
    storage_mb: rest.storage_mb ?? storage,
    network_mode: rest.network_mode ?? (internet == null ? undefined : internet ? 'public' : 'no-network'),
  }))

const Artifact = z.union([
  z.string().transform((source) => ({ source, service: undefined })),
  z.looseObject({ source: z.string(), service: z.string().nullish() }),
])

const HarborConfig = z.looseObject({
  task: z.looseObject({ name: z.string().min(1) }).nullish(),
  metadata: z.record(z.string(), z.unknown()).default({}),
  agent: z.looseObject({ ...Phase, timeout_sec: Seconds.nullish(), user: User }).default({}),
  verifier: z
    .looseObject({
      ...Phase,
      timeout_sec: Seconds.default(600),
      env: Env,
      user: User,
      environment_mode: z.enum(['shared', 'separate']).nullish(),
      environment: z.unknown().optional(),
      collect: z.array(z.unknown()).default([]),
    })
    .prefault({}),
  environment: Environment.prefault({}),
  steps: z.array(z.unknown()).nullish(),
  artifacts: z.array(Artifact).default([]),
})
export type HarborConfig = z.infer<typeof HarborConfig>

/** Parses `task.toml`. Returns all problems of an invalid file. */
export function parseHarborConfig(text: string): { config: HarborConfig } | { problems: string[] } {
  let value: unknown
  try {
    value = parse(text)
  } catch (error) {
    if (!(error instanceof TomlError)) throw error
    return { problems: [`task.toml, line ${error.line}: ${error.message.split('\n')[0]}`] }
  }
  const parsed = HarborConfig.safeParse(value)
  if (!parsed.success) {
    return { problems: parsed.error.issues.map(({ path, message }) => `task.toml, ${path.join('.')}: ${message}`) }
  }
  const problems = [...unsupported(parsed.data)]
  return problems.length === 0 ? { config: parsed.data } : { problems }
}

/** Reports features of a Harbor task that are not supported; ignoring them would change the task. */
function* unsupported(config: HarborConfig): Generator<string> {
  const { environment, verifier, agent } = config
  if (config.steps != null && config.steps.length > 0) yield 'tasks with several steps are not supported'
  if (environment.os !== 'linux') yield `environment.os is ${environment.os}; sandboxes are always Linux`
  if (environment.tpu != null) yield 'environment.tpu is not supported'
  if (environment.healthcheck != null) yield 'environment.healthcheck is not supported: sandboxes start no services'
  if (environment.skills_dir != null) yield 'environment.skills_dir is not supported; set agent.skills_path of the run'
  if (verifier.environment != null)
    yield 'verifier.environment is not supported; the tests run in a new sandbox of the task'
  if (verifier.collect.length > 0) yield 'verifier.collect is not supported; name files as artifacts'
  for (const { name, headers } of environment.mcp_servers) {
    if (Object.keys(headers).length > 0) yield `headers of the MCP server ${name} are not supported`
  }
  for (const { source, service } of config.artifacts) {
    if (service != null && service !== 'main')
      yield `the artifact ${source} belongs to the service ${service}; a session has one sandbox without services`
  }
  const [agentMode, testsMode] = [agent, verifier].map(
    ({ network_mode: mode }) => mode ?? environment.network_mode ?? 'public',
  )
  if (agentMode !== testsMode)
    yield `the network of the agent is ${agentMode} and that of the tests ${testsMode}; they must be equal`
  for (const host of allowedHosts(config)) {
    if (/[*/]/.test(host)) yield `allowed_hosts: ${host} is not a host name; patterns and ranges are not supported`
  }
}

/** The network access of agent and tests: none, the listed hosts, or all hosts. */
export function networkOf(config: HarborConfig): { allow_internet: boolean } | { allow_hosts: string[] } {
  const mode = config.agent.network_mode ?? config.environment.network_mode ?? 'public'
  return mode === 'allowlist' ? { allow_hosts: allowedHosts(config) } : { allow_internet: mode === 'public' }
}

function allowedHosts({ agent, environment }: HarborConfig): string[] {
  return [...new Set([...(environment.allowed_hosts ?? []), ...(agent.allowed_hosts ?? [])])]
}
