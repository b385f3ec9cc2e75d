import * as z from 'zod'
import { findSeedProblem, SEED_BASE_FIELD } from '../../model/sample-seed.ts'
import { TaskRequest } from '../../model/task.ts'
import { Count, Labels, TaskId } from '../fields.ts'

/** More samples in one task are a mistake. */
const MAX_SAMPLES = 10_000

/** A submitted task: NVIDIA Polar's fields, and fields for our dispatch. */
export const SubmitRequest = TaskRequest.safeExtend({
  task_id: TaskId,
  num_samples: z.int().min(1).max(MAX_SAMPLES).default(1),
  requires: Labels.default([]).describe('Labels that a node must have to lease sessions of the task.'),
  max_failures: z
    .int()
    .min(1)
    .max(100)
    .default(4)
    .describe('How many attempts of one session may fail because of infrastructure before the session fails.'),
  policy_version: Count.nullish().describe('Policy version that the task was made for.'),
  staleness_limit: Count.nullish().describe(
    'How many versions a token may be older than the current version; absent: any. A session with an older token is ' +
      'cancelled, and its result refused. With `policy_version`, the task is cancelled once the current version exceeds ' +
      'that version by more than the limit.',
  ),
})
  .refine((task) => isAbsentOrPositive(task.metadata['agent_timeout']), {
    // NVIDIA Polar reads this field of the metadata, which otherwise belongs to the trainer.
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
