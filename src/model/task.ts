import * as z from 'zod'
import { SessionResult } from './session.ts'

/** One step that makes a sandbox ready; they run in order. */
export const PrepareAction = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('upload_file'), source: z.string(), target: z.string() }),
  z.strictObject({ type: z.literal('upload_dir'), source: z.string(), target: z.string() }),
  z.strictObject({
    type: z.literal('exec'),
    command: z.string().min(1),
    cwd: z.string().nullish(),
    env: z.record(z.string(), z.string()).nullish(),
    max_attempts: z.int().min(1).max(10).default(1),
    retry_backoff_seconds: z.number().min(0).max(60).default(0),
  }),
])
export type PrepareAction = z.infer<typeof PrepareAction>

export const RuntimeSpec = z.strictObject({
  backend: z.string().default('docker'),
  image: z.string().min(1),
  prepare: z.array(PrepareAction).default([]),
  /** Null replays `prepare` for the evaluator's sandbox. */
  eval_prepare: z.array(PrepareAction).nullish(),
  env: z.record(z.string(), z.string()).default({}),
  network: z.string().default('host'),
  workdir: z.string().nullish(),
  cpus: z.int().positive().nullish(),
  memory_mb: z.int().positive().nullish(),
  storage_mb: z.int().positive().nullish(),
  gpus: z.int().min(0).default(0),
  allow_internet: z.boolean().default(true),
  import_path: z.string().nullish(),
  kwargs: z.record(z.string(), z.unknown()).default({}),
})
export type RuntimeSpec = z.infer<typeof RuntimeSpec>

const McpServerSpec = z
  .strictObject({
    name: z.string().min(1),
    transport: z.enum(['stdio', 'sse', 'streamable-http']),
    command: z.string().nullish(),
    args: z.array(z.string()).default([]),
    url: z.string().nullish(),
  })
  .refine((server) => (server.transport === 'stdio' ? server.command : server.url), {
    message: 'a stdio server needs a command, the others need a url',
  })
export type McpServer = z.infer<typeof McpServerSpec>

const ExecInput = z.strictObject({
  command: z.string().min(1),
  cwd: z.string().nullish(),
  env: z.record(z.string(), z.string()).nullish(),
})
export type ShellCommand = z.infer<typeof ExecInput>

export const AgentSpec = z
  .strictObject({
    harness: z.string().nullish(),
    import_path: z.string().nullish(),
    model_name: z.string().nullish(),
    settings: z.record(z.string(), z.unknown()).default({}),
    env: z.record(z.string(), z.string()).default({}),
    mcp_servers: z.array(McpServerSpec).default([]),
    skills_path: z.string().nullish(),
    custom_shell: ExecInput.nullish(),
  })
  .refine((agent) => (agent.harness == null) !== (agent.import_path == null), {
    message: 'exactly one of harness and import_path must be given',
  })
  .refine((agent) => (agent.harness === 'shell') === (agent.custom_shell != null), {
    message: 'custom_shell goes with the harness "shell", and only with it',
  })
export type AgentSpec = z.infer<typeof AgentSpec>

export const StrategySpec = z.strictObject({
  strategy: z.string().min(1),
  config: z.record(z.string(), z.unknown()).default({}),
})
export type StrategySpec = z.infer<typeof StrategySpec>

export const EvaluatorSpec = z.strictObject({
  strategy: z.string().min(1),
  config: z.record(z.string(), z.unknown()).default({}),
  env: z.record(z.string(), z.string()).default({}),
  refresh_runtime: z.boolean().default(false),
})
export type EvaluatorSpec = z.infer<typeof EvaluatorSpec>

/** What a trainer asks for: one instruction, `num_samples` attempts. Field names are NVIDIA Polar's. */
export const TaskRequest = z
  .strictObject({
    task_id: z.string().min(1).max(512),
    instruction: z.string(),
    num_samples: z.int().min(1).default(1),
    timeout_seconds: z.number().positive().default(600),
    /** Absent: the node's default runtime. */
    runtime: RuntimeSpec.nullish(),
    agent: AgentSpec,
    builder: StrategySpec.default({ strategy: 'per_request', config: {} }),
    evaluator: EvaluatorSpec.nullish(),
    callback_url: z.url().nullish(),
    /** 0-100; higher enters INIT first and never pre-empts. */
    dispatch_priority: z.int().min(0).max(100).default(0),
    early_stop_min_usable_sessions: z.int().min(1).nullish(),
    metadata: z.record(z.string(), z.unknown()).default({}),
  })
  .refine((task) => (task.early_stop_min_usable_sessions ?? 0) <= task.num_samples, {
    message: 'early_stop_min_usable_sessions must not exceed num_samples',
  })
export type TaskRequest = z.infer<typeof TaskRequest>

const TaskState = z.enum(['running', 'completed', 'failed', 'cancelling', 'cancelled'])

/** What a trainer's callback receives. */
export const TaskResult = z.object({
  task_id: z.string(),
  status: TaskState,
  results: z.array(SessionResult),
  result_paths: z.array(z.string()).default([]),
})
export type TaskResult = z.infer<typeof TaskResult>

export const TaskStatus = TaskResult.extend({ total_sessions: z.int(), completed_sessions: z.int() })
export type TaskStatus = z.infer<typeof TaskStatus>
