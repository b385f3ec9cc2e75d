import { parse, TomlError } from 'smol-toml'
import * as z from 'zod'

/**
 * `task.toml` of a Harbor task, as far as we read it. What Harbor gave other names before is there under the newer one:
 * `version`, `memory`, `storage`, `allow_internet`.
 */
const Seconds = z.number().positive()
const Env = z.record(z.string(), z.string()).default({})
const NetworkMode = z.enum(['no-network', 'public', 'allowlist'])
const Phase = { network_mode: NetworkMode.nullish(), allowed_hosts: z.array(z.string()).nullish() }
const User = z.union([z.string(), z.int()]).nullish()

/** '2G' is 2048; K, M and G are powers of 1024. */
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

/** What the file says, or all that is wrong with it. */
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

/** What a Harbor task may want that is not done here; better said than left out. */
function* unsupported(config: HarborConfig): Generator<string> {
  const { environment, verifier, agent } = config
  if (config.steps != null && config.steps.length > 0) yield 'tasks of several steps are not supported'
  if (environment.os !== 'linux') yield `environment.os is ${environment.os}; sandboxes here are Linux`
  if (environment.tpu != null) yield 'environment.tpu is not supported'
  if (environment.healthcheck != null) yield 'environment.healthcheck is not supported: no services are started here'
  if (environment.skills_dir != null) yield 'environment.skills_dir is not supported; set agent.skills_path of the run'
  if (verifier.environment != null)
    yield 'a verifier.environment of its own is not supported; the tests run in a new sandbox of the task'
  if (verifier.collect.length > 0) yield 'verifier.collect is not supported; name files as artifacts'
  for (const { name, headers } of environment.mcp_servers) {
    if (Object.keys(headers).length > 0) yield `the MCP server ${name} wants headers, which are not supported`
  }
  for (const { source, service } of config.artifacts) {
    if (service != null && service !== 'main')
      yield `the artifact ${source} is of the service ${service}; there is one sandbox only`
  }
  const [ofAgent, ofTests] = [agent, verifier].map(
    ({ network_mode: mode }) => mode ?? environment.network_mode ?? 'public',
  )
  if (ofAgent !== ofTests)
    yield `the agent's network is ${ofAgent}, that of the tests ${ofTests}; here they have the same`
  for (const host of allowedHosts(config)) {
    if (/[*/]/.test(host)) yield `allowed_hosts: ${host} is no name of a host; patterns and ranges are not supported`
  }
}

/** Whom agent and tests may talk to: nobody, these, or everybody. */
export function networkOf(config: HarborConfig): { allow_internet: boolean } | { allow_hosts: string[] } {
  const mode = config.agent.network_mode ?? config.environment.network_mode ?? 'public'
  return mode === 'allowlist' ? { allow_hosts: allowedHosts(config) } : { allow_internet: mode === 'public' }
}

function allowedHosts({ agent, environment }: HarborConfig): string[] {
  return [...new Set([...(environment.allowed_hosts ?? []), ...(agent.allowed_hosts ?? [])])]
}
