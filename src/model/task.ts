import * as z from 'zod'
import { arrayOf, recordOf } from '../lib/json/list-of.ts'
import { Label } from './sample.ts'
import { SessionResult } from './session.ts'
import { toHarnessName, whyUnsupported } from './strategy-names.ts'
import { Steering } from './turn.ts'

/**
 * Allows no other transports, nothing that git or ssh could parse as an option, and no credentials in https URLs: the operator
 * of the node configures credentials.
 */
const REPOSITORY =
  /^(?:https:\/\/[\p{L}\p{N}[][\p{L}\p{N}.:_[\]-]*\/|ssh:\/\/(?:[^\s\p{Cc}/@:-][^\s\p{Cc}/@:]*@)?[\p{L}\p{N}[][\p{L}\p{N}.:_[\]-]*\/|file:\/\/\/|\/)[^\s\p{Cc}-][^\s\p{Cc}]*$/u

/**
 * Not in NVIDIA Polar: a repository at a commit, without later commits in its history. The node copies it from its own mirror;
 * the sandbox needs neither git nor a network.
 */
const CheckoutAction = z.strictObject({
  type: z.literal('checkout'),
  repository: z
    .string()
    .regex(REPOSITORY, 'must be an https URL without credentials, an ssh or file URL, or an absolute path on the node'),
  commit: z.string().regex(/^(?:[0-9a-f]{40}|[0-9a-f]{64})$/, 'must be a whole commit id; a branch may move'),
  target: z.string().min(1),
  /** Number of commits of its history; absent: all. */
  depth: z.int().min(1).nullish(),
})
export type CheckoutAction = z.infer<typeof CheckoutAction>

/** Accepted values of fields of other steps, for clients that send every field. */
const NOT_OF_UPLOADS = {
  command: z.null().optional(),
  cwd: z.null().optional(),
  env: z.null().optional(),
  max_attempts: z.literal(1).nullish(),
  retry_backoff_seconds: z.literal(0).nullish(),
}

/** One preparation step of a sandbox. Steps run in order. */
export const PrepareAction = z.discriminatedUnion('type', [
  z.strictObject({ type: z.literal('upload_file'), source: z.string(), target: z.string(), ...NOT_OF_UPLOADS }),
  z.strictObject({ type: z.literal('upload_dir'), source: z.string(), target: z.string(), ...NOT_OF_UPLOADS }),
  CheckoutAction,
  z.strictObject({
    type: z.literal('exec'),
    command: z.string().min(1),
    cwd: z.string().nullish(),
    env: recordOf(z.string()).nullish(),
    max_attempts: z.int().min(1).max(10).default(1),
    retry_backoff_seconds: z.number().min(0).max(60).default(0),
    source: z.null().optional(),
    target: z.null().optional(),
  }),
])
export type PrepareAction = z.infer<typeof PrepareAction>

/**
 * Sandbox of a session. Field names are NVIDIA Polar's, but the node chooses safe defaults: its own kind of sandbox, and no
 * network except the model.
 */
export const RuntimeSpec = z.strictObject({
  /** Absent: `docker` for a task with an image, else the node's default. */
  backend: z.string().nullish(),
  image: z.string().min(1).nullish(),
  prepare: arrayOf(PrepareAction).default([]),
  /** Null: `prepare` also runs in the evaluator's sandbox. */
  eval_prepare: arrayOf(PrepareAction).nullish(),
  env: recordOf(z.string()).default({}),
  /**
   * Used if neither `allow_internet` nor `allow_hosts` is set: `host` and `bridge` request the internet, `none` requests no
   * network. A sandbox never joins the network namespace of another container.
   */
  network: z
    .string()
    .regex(/^(?:host|bridge|none|)$/, 'must be host, bridge or none; a sandbox joins no other network')
    .nullish(),
  workdir: z.string().nullish(),
  cpus: z.number().positive().nullish(),
  memory_mb: z.int().positive().nullish(),
  storage_mb: z.int().positive().nullish(),
  pids: z.int().positive().nullish(),
  gpus: z.int().min(0).default(0),
  /** Absent: false, unless `network` requests it. NVIDIA Polar's default is true. */
  allow_internet: z.boolean().nullish(),
  allow_hosts: arrayOf(z.string().min(1)).nullish(),
  import_path: z.string().nullish(),
  kwargs: z.record(z.string(), z.unknown()).default({}),
  /** Volumes as in `kwargs.volumes`, only for sandboxes with internet access. */
  internet_volumes: arrayOf(z.string()).nullish(),
  /**
   * Shell command that runs in every new Apptainer sandbox before its first step, for services that an image's own hooks
   * would start. Other runtimes ignore it, as NVIDIA Polar's do.
   */
  direct_exec_init_command: z.string().min(1).nullish(),
})
export type RuntimeSpec = z.infer<typeof RuntimeSpec>

const McpServerSpec = z
  .strictObject({
    name: z.string().min(1),
    transport: z.enum(['stdio', 'sse', 'streamable-http']),
    command: z.string().nullish(),
    args: arrayOf(z.string()).default([]),
    url: z.string().nullish(),
  })
  .refine((server) => (server.transport === 'stdio' ? server.command : server.url), {
    message: 'a stdio server needs a command, the others need a url',
  })
export type McpServer = z.infer<typeof McpServerSpec>

const ExecInput = z.strictObject({
  command: z.string().min(1),
  cwd: z.string().nullish(),
  env: recordOf(z.string()).nullish(),
})
export type ShellCommand = z.infer<typeof ExecInput>

export const AgentSpec = z
  .strictObject({
    harness: z
      .string()
      .overwrite(toHarnessName)
      .superRefine((name, context) => addReason('harness', name, context))
      .nullish(),
    import_path: z.string().nullish(),
    model_name: z.string().nullish(),
    settings: z.record(z.string(), z.unknown()).default({}),
    env: recordOf(z.string()).default({}),
    mcp_servers: arrayOf(McpServerSpec).default([]),
    skills_path: z.string().nullish(),
    custom_shell: ExecInput.nullish(),
  })
  .refine((agent) => (agent.harness == null) !== (agent.import_path == null), {
    message: 'exactly one of harness and import_path must be set',
  })
  .refine((agent) => (agent.harness === 'shell') === (agent.custom_shell != null), {
    message: 'custom_shell must be set for the harness "shell", and only for it',
  })
export type AgentSpec = z.infer<typeof AgentSpec>

/** Rejects unsupported strategies of NVIDIA Polar with the reason. */
function addReason(kind: Parameters<typeof whyUnsupported>[0], name: string, context: z.core.$RefinementCtx): void {
  const message = whyUnsupported(kind, name)
  if (message !== undefined) context.addIssue({ code: 'custom', message, input: name })
}

export const StrategySpec = z.strictObject({
  strategy: z.string().min(1),
  config: z.record(z.string(), z.unknown()).default({}),
})
export type StrategySpec = z.infer<typeof StrategySpec>

const BuilderSpec = StrategySpec.extend({
  strategy: StrategySpec.shape.strategy.superRefine((name, context) => addReason('builder', name, context)),
})

export const EvaluatorSpec = z.strictObject({
  strategy: z
    .string()
    .min(1)
    .superRefine((name, context) => addReason('evaluator', name, context)),
  config: z.record(z.string(), z.unknown()).default({}),
  env: recordOf(z.string()).default({}),
  refresh_runtime: z.boolean().default(false),
})
export type EvaluatorSpec = z.infer<typeof EvaluatorSpec>

/** Time limits in seconds. Absent: the node's limits. `agent` defaults to `timeout_seconds`. */
const Budgets = z.strictObject({
  init: z.number().positive().nullish(),
  agent: z.number().positive().nullish(),
  evaluate: z.number().positive().nullish(),
  /** Limit for preparation and run together. */
  session: z.number().positive().nullish(),
})

/** Sampling parameters that replace those of the harness. */
const SamplingSpec = z.strictObject({
  temperature: z.number().min(0).nullish(),
  top_p: z.number().positive().max(1).nullish(),
  top_k: z.int().nullish(),
  min_p: z.number().min(0).max(1).nullish(),
  seed: z.int().nullish(),
  max_tokens: z.int().positive().nullish(),
  presence_penalty: z.number().nullish(),
  frequency_penalty: z.number().nullish(),
})
export type SamplingSpec = z.infer<typeof SamplingSpec>

/** Selects the calls to train. Labels are derived from requests of the sandbox, so an agent may influence them. */
const TrainingSpec = z.strictObject({
  /** Absent: `main` and `subagent`. `all`: every label. */
  labels: z.union([z.literal('all'), z.array(Label).min(1)]).nullish(),
  /** Kinds of steering whose calls are trained too. Absent: none. */
  allow_steered: z.union([z.literal('all'), z.array(Steering)]).nullish(),
})
export type TrainingSpec = z.infer<typeof TrainingSpec>

/** A task of a trainer: one instruction, `num_samples` sessions. Field names are NVIDIA Polar's. */
export const TaskRequest = z
  .strictObject({
    task_id: z.string().min(1).max(512),
    instruction: z.string(),
    num_samples: z.int().min(1).default(1),
    /**
     * Seconds for the agent alone. `budgets` limits preparation and grading separately, and `budgets.session` preparation and
     * run together. NVIDIA Polar's limit covers all three.
     */
    timeout_seconds: z.number().positive().default(600),
    /** Absent: the node's default runtime. */
    runtime: RuntimeSpec.nullish(),
    agent: AgentSpec,
    builder: BuilderSpec.default({ strategy: 'per_request', config: {} }),
    evaluator: EvaluatorSpec.nullish(),
    callback_url: z.url().nullish(),
    /** 0-100; sessions with a higher priority start first, without pre-emption. */
    dispatch_priority: z.int().min(0).max(100).default(0),
    early_stop_min_usable_sessions: z.int().min(1).nullish(),
    budgets: Budgets.nullish(),
    sampling: SamplingSpec.nullish(),
    training: TrainingSpec.nullish(),
    metadata: z.record(z.string(), z.unknown()).default({}),
  })
  .refine((task) => (task.early_stop_min_usable_sessions ?? 0) <= task.num_samples, {
    message: 'early_stop_min_usable_sessions must not exceed num_samples',
  })
export type TaskRequest = z.infer<typeof TaskRequest>

const TaskState = z.enum(['running', 'completed', 'failed', 'cancelling', 'cancelled'])

/** Body of a trainer's callback. */
export const TaskResult = z.object({
  task_id: z.string(),
  /** A status of NVIDIA Polar: a task that failed because of infrastructure is `completed`, with only ERROR sessions. */
  status: TaskState,
  /** Not in NVIDIA Polar: `failed` if every session failed because of infrastructure. */
  polar_status: TaskState.nullish(),
  results: arrayOf(SessionResult),
  result_paths: arrayOf(z.string()).default([]),
})
export type TaskResult = z.infer<typeof TaskResult>

export const TaskStatus = TaskResult.extend({ total_sessions: z.int(), completed_sessions: z.int() })
export type TaskStatus = z.infer<typeof TaskStatus>
