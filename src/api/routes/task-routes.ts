import * as z from 'zod'
import { arrayOf } from '../../lib/json/list-of.ts'
import { SessionId } from '../../model/ids.ts'
import { SessionResult, SessionStatus } from '../../model/session.ts'
import { TaskStatus } from '../../model/task.ts'
import { Count, Cursor, Digest, limit, next, TaskId, UnixSeconds, WaitSeconds } from '../fields.ts'
import { json, jsonBody, MIB, route } from '../route.ts'
import { adaptNvidiaTask } from './nvidia-task.ts'
import { SessionSummary } from './session-routes.ts'
import { exampleTask, SubmitRequest } from './submit-request.ts'

/** `cancelling` is NVIDIA Polar's state between the cancel request and the end; this server does not use it. */
export const ApiTaskState = TaskStatus.shape.status

const byTask = z.strictObject({ task_id: TaskId })

const SubmitAnswer = z.object({
  task_id: TaskId,
  /** `running` for a new task; a task that existed with the same contents may have ended. */
  status: ApiTaskState,
  /** Ignored fields, converted types, an archived older run, and other notices for people. */
  warnings: z.array(z.string()).optional(),
})

const BatchOutcome = z.enum(['created', 'same', 'conflict', 'stale', 'cancelled', 'deleted', 'no-node'])

const submitQuery = z.object({
  unrunnable: z
    .enum(['refuse', 'queue'])
    .default('refuse')
    .describe(
      'How to handle a task whose required labels no registered node has: `queue` waits for such a node. While no node is ' +
        'registered, tasks are always queued.',
    ),
})

/** The fields up to `source` are NVIDIA Polar's; those after it are ours. */
export const TaskSummary = z.object({
  task_id: TaskId,
  status: ApiTaskState,
  harness: z.string().nullable(),
  model: z.string().nullable(),
  num_samples: Count,
  completed_sessions: Count,
  errored_sessions: Count,
  mean_reward: z.number().nullable(),
  mean_traces: z.number().nullable(),
  mean_completions: z.number().nullable(),
  created_at: UnixSeconds,
  updated_at: UnixSeconds,
  source: z.literal('live'),
  /** Ended sessions whose result counts; `usable_sessions`: those of them with tokens to train on. */
  valid_sessions: Count,
  usable_sessions: Count,
  cancelled_sessions: Count,
  /** Attempts that failed because of infrastructure and were retried. */
  refills: Count,
  dispatch_priority: Count,
  policy_version: Count.nullable(),
})

/** Location and digest of a result file, for readers that share the server's storage. */
const ResultReference = z.object({
  session_id: SessionId,
  attempt: z.int(),
  path: z.string(),
  digest: Digest,
  bytes: Count,
})

const exampleStatus = {
  task_id: 'polar-slime-7-0',
  status: 'running',
  results: [],
  result_paths: [],
  total_sessions: 8,
  completed_sessions: 0,
}

export const taskRoutes = {
  submitTask: route({
    method: 'post',
    path: '/rollout/task/submit',
    origin: 'nvidia',
    tag: 'tasks',
    summary: 'Submit a task: one instruction, `num_samples` sessions.',
    description:
      'Responds once the task is stored. While a task with this id runs, the same body returns that task, and a different ' +
      'body is refused (409). After the task has ended, a submit starts a new run under the id, and the older run is renamed ' +
      'to `<task_id>~<run>`. 409 also: the id was cancelled before it was submitted, or the policy version of the task is too ' +
      'old. 429: the queue limit of the token is reached. 503: no registered node can run the task. Unknown fields, null, and ' +
      'numbers and booleans as text are accepted with `warnings`; with the header `X-Polar-Strict: true` they are refused.',
    scopes: ['trainer'],
    query: submitQuery,
    body: { ...jsonBody(SubmitRequest, 16 * MIB), adapt: adaptNvidiaTask },
    answer: json(SubmitAnswer),
    errors: [409, 429],
    takesKey: true,
    idempotency:
      'With an `Idempotency-Key`, a repeated request returns the same task, also after it has ended; without, only while it runs.',
    examples: { body: exampleTask, answer: { task_id: 'polar-slime-7-0', status: 'running' } },
  }),
  submitBatch: route({
    method: 'post',
    path: '/tasks/batch',
    tag: 'tasks',
    summary: 'Submit many tasks.',
    description: 'All tasks are stored in one transaction; `outcomes` are in the order of `tasks`.',
    scopes: ['trainer'],
    query: z.strictObject(submitQuery.shape),
    body: jsonBody(z.strictObject({ tasks: arrayOf(SubmitRequest).min(1).max(1000) }), 64 * MIB),
    answer: json(
      z.object({
        outcomes: z.array(
          z.object({ task_id: TaskId, outcome: BatchOutcome, warnings: z.array(z.string()).optional() }),
        ),
      }),
    ),
    errors: [429],
    takesKey: true,
    idempotency: 'As for `submitTask`, for each task.',
    examples: {
      body: { tasks: [exampleTask] },
      answer: { outcomes: [{ task_id: 'polar-slime-7-0', outcome: 'created' }] },
    },
  }),
  getTask: route({
    method: 'get',
    path: '/rollout/task/{task_id}',
    origin: 'nvidia',
    tag: 'tasks',
    summary: 'Get the progress of a task and the results of its ended sessions.',
    scopes: ['read', 'trainer'],
    params: byTask,
    query: z.object({
      wait: WaitSeconds,
      known_completed: Count.optional().describe(
        'With `wait`: respond when more sessions than this have ended. Absent: when the task has ended.',
      ),
      results: z
        .enum(['inline', 'reference'])
        .default('inline')
        .describe('`reference`: `results` is empty, and `result_paths` lists the files.'),
    }),
    answer: json(TaskStatus),
    errors: [404],
    examples: { answer: exampleStatus },
  }),
  cancelTask: route({
    method: 'delete',
    path: '/rollout/task/{task_id}',
    origin: 'nvidia',
    tag: 'tasks',
    summary: 'Cancel a task and its sessions.',
    scopes: ['trainer'],
    params: byTask,
    query: z.object({
      register_if_missing: z
        .boolean()
        .default(false)
        .describe('Reserve an id that does not exist, so that a later submit is refused (409).'),
    }),
    answer: json(TaskStatus),
    errors: [404],
    examples: { answer: { ...exampleStatus, status: 'cancelled' } },
  }),
  updateTask: route({
    method: 'patch',
    path: '/tasks/{task_id}',
    tag: 'tasks',
    summary: 'Change the priority or early stop of a running task.',
    scopes: ['trainer'],
    params: byTask,
    body: jsonBody(
      z.strictObject({
        dispatch_priority: z.int().min(0).max(100).optional(),
        early_stop_min_usable_sessions: z
          .int()
          .min(1)
          .nullable()
          .optional()
          .describe(
            'Null: no early stop. If the value is already reached, the remaining sessions are cancelled at once.',
          ),
      }),
    ),
    answer: json(TaskSummary),
    errors: [404, 409],
    examples: { body: { dispatch_priority: 50 } },
  }),
  deleteTask: route({
    method: 'delete',
    path: '/tasks/{task_id}',
    tag: 'tasks',
    summary: 'Delete an ended task with its sessions, results and artifacts.',
    description:
      'The deletion is final and drops pending callbacks. 409: the task is running; cancel it first. The id stays reserved ' +
      'for a day: a repeat of the submit that created the task, with its `Idempotency-Key`, is refused (409).',
    scopes: ['trainer'],
    params: byTask,
    answer: json(z.object({ task_id: TaskId, deleted_sessions: Count, deleted_bytes: Count })),
    errors: [404, 409],
    idempotency: 'A second request returns 404.',
    examples: { answer: { task_id: 'polar-slime-7-0', deleted_sessions: 8, deleted_bytes: 731_204 } },
  }),
  retryTask: route({
    method: 'post',
    path: '/tasks/{task_id}/retry',
    tag: 'tasks',
    summary: 'Retry the sessions of a task whose end was not caused by the agent.',
    scopes: ['trainer'],
    params: byTask,
    body: jsonBody(
      z.strictObject({
        statuses: z
          .array(z.enum(['ERROR', 'TIMEOUT', 'CANCELLED']))
          .max(3)
          .default(['ERROR']),
      }),
    ),
    answer: json(z.object({ task_id: TaskId, status: ApiTaskState, retried_sessions: Count })),
    errors: [404, 409, 429],
    idempotency: 'A requeued session no longer has one of these statuses.',
    examples: { body: { statuses: ['ERROR'] }, answer: { task_id: 'a', status: 'running', retried_sessions: 2 } },
  }),
  listTasks: route({
    method: 'get',
    path: '/tasks',
    origin: 'nvidia',
    tag: 'tasks',
    summary: 'List tasks, last change first.',
    scopes: ['read', 'trainer'],
    query: z.object({
      status: ApiTaskState.optional(),
      harness: z.string().min(1).max(256).optional(),
      model: z.string().min(1).max(256).optional(),
      search: z.string().min(1).max(256).optional().describe('Substring of the task id.'),
      since: UnixSeconds.optional().describe('Unix seconds: only tasks that changed since.'),
      limit: limit(1000, 200),
      cursor: Cursor.optional(),
    }),
    answer: json(z.object({ tasks: z.array(TaskSummary), ...next })),
    examples: { answer: { tasks: [] } },
  }),
  listTaskSessions: route({
    method: 'get',
    path: '/tasks/{task_id}/sessions',
    origin: 'nvidia',
    tag: 'tasks',
    summary: 'List the sessions of a task, in order of sample.',
    scopes: ['read', 'trainer'],
    params: byTask,
    query: z.object({ status: SessionStatus.optional(), limit: limit(10_000, 10_000), cursor: Cursor.optional() }),
    answer: json(
      z.object({
        task_id: TaskId,
        sessions: z.array(SessionSummary),
        /** Reason why queued sessions do not start (no registered node has the labels). Null: some node can run them. */
        unrunnable: z.string().nullable().default(null),
        ...next,
      }),
    ),
    errors: [404],
    examples: { answer: { task_id: 'polar-slime-7-0', sessions: [] } },
  }),
  streamTaskResults: route({
    method: 'get',
    path: '/tasks/{task_id}/results',
    tag: 'tasks',
    summary: 'Stream the results of a task, one per line, in the order of acceptance.',
    description:
      'Compressed with zstd or gzip according to `Accept-Encoding`. The position of a result never changes: `skip` the lines ' +
      'that were already received. A retried session has one line for each end; the last one counts.',
    scopes: ['read', 'trainer'],
    params: byTask,
    query: z.strictObject({
      skip: Count.default(0).describe('Number of lines to skip.'),
      follow: z.boolean().default(false).describe('Continue until the task has ended.'),
    }),
    answer: { kind: 'ndjson', schema: SessionResult, resumeBy: 'skip' },
    errors: [404],
  }),
  listTaskResults: route({
    method: 'get',
    path: '/tasks/{task_id}/results/references',
    tag: 'tasks',
    summary: 'List the result files of a task.',
    scopes: ['read', 'trainer'],
    params: byTask,
    query: z.strictObject({ limit: limit(10_000, 1000), cursor: Cursor.optional() }),
    answer: json(z.object({ task_id: TaskId, results: z.array(ResultReference), ...next })),
    errors: [404],
    examples: { answer: { task_id: 'polar-slime-7-0', results: [] } },
  }),
}
