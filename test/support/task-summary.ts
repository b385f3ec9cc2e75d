import { TaskSummary } from '../../src/api/routes/task-routes.ts'

/** Current time for the task below. */
export const NOW = 1_800_000_000_000

/** A running task in a server's list. */
export const taskSummary = TaskSummary.parse({
  task_id: 'fix-42',
  status: 'running',
  harness: 'codex',
  model: null,
  num_samples: 8,
  completed_sessions: 3,
  errored_sessions: 1,
  mean_reward: 0.5,
  mean_traces: null,
  mean_completions: null,
  created_at: NOW / 1000 - 150,
  updated_at: NOW / 1000,
  source: 'live',
  valid_sessions: 2,
  usable_sessions: 2,
  cancelled_sessions: 0,
  refills: 1,
  dispatch_priority: 0,
  policy_version: null,
})
