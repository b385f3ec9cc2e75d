import * as z from 'zod'
import { findSeedProblem, SEED_BASE_FIELD } from '../../model/sample-seed.ts'
import { TaskRequest } from '../../model/task.ts'
import { Count, Labels, TaskId } from '../fields.ts'

/** More than this in one task is a mistake, or a batch of tasks. */
const MOST_SAMPLES = 10_000

/** A task as it is submitted: NVIDIA Polar's fields, and what our dispatch can be told besides. */
export const SubmitRequest = TaskRequest.safeExtend({
  task_id: TaskId,
  num_samples: z.int().min(1).max(MOST_SAMPLES).default(1),
  requires: Labels.default([]).describe('Labels a node must have to be given its sessions.'),
  max_failures: z
    .int()
    .min(1)
    .max(100)
    .default(4)
    .describe('How many attempts of one session infrastructure may spoil before the session has failed.'),
  policy_version: Count.nullish().describe('The version of the policy that the task was made for.'),
  staleness_limit: Count.nullish().describe(
    'The task is cancelled once the current version is more than this ahead of `policy_version`; absent: never.',
  ),
})
  .refine((task) => task.staleness_limit == null || task.policy_version != null, {
    path: ['staleness_limit'],
    message: 'needs a policy_version to count from',
  })
  .refine((task) => isAbsentOrPositive(task.metadata['agent_timeout']), {
    // NVIDIA Polar reads this one field of what is otherwise the trainer's own.
    path: ['metadata', 'agent_timeout'],
    message: 'must be a positive number of seconds',
  })
  .superRefine((task, check) => {
    const message = findSeedProblem(task)
    if (message !== undefined) check.addIssue({ code: 'custom', path: ['metadata', SEED_BASE_FIELD], message })
  })
export type SubmitRequest = z.infer<typeof SubmitRequest>

function isAbsentOrPositive(value: unknown): boolean {
  return value == null || (typeof value === 'number' && Number.isFinite(value) && value > 0)
}

export const exampleTask = {
  task_id: 'polar-slime-7-0',
  instruction: 'Fix the failing test in /testbed.',
  num_samples: 8,
  timeout_seconds: 2400,
  runtime: { backend: 'docker', image: 'swe:42', workdir: '/testbed' },
  agent: { harness: 'codex', model_name: 'policy' },
  builder: { strategy: 'prefix_merging' },
  evaluator: { strategy: 'test_on_output', config: {}, refresh_runtime: true },
  callback_url: 'http://127.0.0.1:9000/callback/task_result',
  metadata: { group_index: 0 },
}
