import * as z from 'zod'

/**
 * The models with which NVIDIA Polar's trainer parses tasks, equally strict: `timing` accepts no other key, numbers are
 * never null, strings are values of their enumerations, and extra fields are allowed only where theirs ignore them. They
 * are written from observed behaviour and import none of our code.
 */
const BASE_TIMING = {
  register_to_init_queue_ms: z.number().optional(),
  init_ms: z.number().optional(),
  run_ms: z.number().optional(),
  postrun_ms: z.number().optional(),
}

const LATER_MILLISECONDS =
  'rollout_dispatch rollout_result_wait rollout_pipeline_e2e ready_queue postrun_queue container_start ' +
  'eval_container_start runtime_validation eval_runtime_validation prepare eval_prepare agent_setup agent_exec ' +
  'agent_postprocess build eval postrun_exec runtime_stop e2e runtime_exec mini_swe_command'

const LATER_TIMING = {
  ...BASE_TIMING,
  ...Object.fromEntries(LATER_MILLISECONDS.split(' ').map((name) => [`${name}_ms`, z.number().optional()])),
}

const Metadata = z.record(z.string(), z.unknown()).default({})

const Trace = z
  .object({
    prompt_ids: z.array(z.int()).default([]),
    response_ids: z.array(z.int()).default([]),
    loss_mask: z.array(z.literal([0, 1])).default([]),
    prompt_messages: z.array(z.record(z.string(), z.unknown())).default([]),
    response_messages: z.array(z.record(z.string(), z.unknown())).default([]),
    tools: z.array(z.record(z.string(), z.unknown())).nullish(),
    finish_reason: z.string().nullish(),
    response_logprobs: z.array(z.number()).nullish(),
    reward: z.number().nullish(),
    metadata: Metadata,
  })
  .refine((trace) => trace.loss_mask.length === 0 || trace.loss_mask.length === trace.response_ids.length)
  .refine((trace) => trace.response_logprobs == null || trace.response_logprobs.length === trace.response_ids.length)

const Trajectory = z.object({
  status: z.enum(['COMPLETED', 'TIMEOUT', 'ERROR']),
  metadata: Metadata,
  traces: z.array(Trace).default([]),
  error: z.string().nullish(),
})

const ACTIVE = ['REGISTERED', 'INITIALIZING', 'READY', 'RUNNING', 'POST_RUN', 'BUILDING', 'EVALUATING'] as const

function modelsOf(timing: z.ZodRawShape) {
  const SessionResult = z.object({
    session_id: z.string(),
    task_id: z.string(),
    status: z.enum([...ACTIVE, 'COMPLETED', 'ERROR', 'TIMEOUT']),
    trajectory: Trajectory,
    timing: z.strictObject(timing).default({}),
    node_id: z.string().nullish(),
    error: z.string().nullish(),
    metadata: Metadata,
  })
  const TaskResult = z.object({
    task_id: z.string(),
    status: z.string(),
    results: z.array(SessionResult),
    result_paths: z.array(z.string()).default([]),
  })
  return { TaskResult, TaskStatus: TaskResult.extend({ total_sessions: z.int(), completed_sessions: z.int() }) }
}

export const nvidiaModels = { base: modelsOf(BASE_TIMING), later: modelsOf(LATER_TIMING) }
export type NvidiaTaskResult = z.infer<(typeof nvidiaModels)['later']['TaskResult']>
export type NvidiaSessionResult = NvidiaTaskResult['results'][number]

/** The newer trainer's sample of each trace of a session; a session without traces is a placeholder. */
export function sampleStatuses({ status, error, trajectory }: NvidiaSessionResult): string[] {
  const agent = trajectory.metadata['agent_result'] as Record<string, unknown> | undefined
  const evaluation = trajectory.metadata['evaluation'] as Record<string, unknown> | undefined
  const isAgentTimeout =
    status === 'TIMEOUT' &&
    trajectory.status === 'TIMEOUT' &&
    agent?.['status'] === 'timeout' &&
    agent['timeout_source'] === 'agent' &&
    agent['timeout_stage'] === 'exec' &&
    evaluation?.['verifier_timeout'] !== true
  return trajectory.traces.map((trace) => {
    const filter = trace.metadata['training_filter'] as Record<string, unknown> | undefined
    const isTrainable = filter?.['reason'] === 'agent_timeout' && filter['trainable'] === true && !filter['masked']
    if (isAgentTimeout && isTrainable) return 'TRUNCATED'
    if (status === 'TIMEOUT' || trajectory.status === 'TIMEOUT') return 'ABORTED'
    if (status === 'ERROR' || trajectory.status === 'ERROR' || error || trajectory.error) return 'FAILED'
    return trace.finish_reason === 'length' ? 'TRUNCATED' : 'COMPLETED'
  })
}
