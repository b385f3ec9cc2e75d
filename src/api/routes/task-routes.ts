import * as z from 'zod'
import { arrayOf } from '../../lib/json/list-of.ts'
import { SessionId } from '../../model/ids.ts'
import { SessionResult, SessionStatus } from '../../model/session.ts'
import { TaskStatus } from '../../model/task.ts'
import { Count, Cursor, Digest, limit, next, TaskId, UnixSeconds, WaitSeconds } from '../fields.ts'
import { adaptNvidiaTask } from './nvidia-task.ts'
import { json, jsonBody, MIB, route } from '../route.ts'
import { SessionSummary } from './session-routes.ts'
import { exampleTask, SubmitRequest } from './submit-request.ts'

/** Those of a task that is still there to be seen; `cancelling` is NVIDIA Polar's, between the request and the end. */
export const TaskWord = TaskStatus.shape.status

const byTask = z.strictObject({ task_id: TaskId })

const SubmitAnswer = z.object({
  task_id: TaskId,
  /** `running` for a new task; a task that was there with this very body may have come further. */
  status: TaskWord,
  /** What a person should know: fields that were ignored or read in another type, an older run that was archived. */
  warnings: z.array(z.string()).optional(),
})

const BatchOutcome = z.enum(['created', 'same', 'conflict', 'stale', 'cancelled', 'deleted', 'no-node'])

const submitQuery = z.object({
  unrunnable: z
    .enum(['refuse', 'queue'])
    .default('refuse')
    .describe(
      'What to do with a task that no registered node can run, for the lack of a label: `queue` waits for such a node. ' +
        'While no node is registered at all, tasks wait in any case.',
    ),
})

/** Field names are NVIDIA Polar's, down to `source`; those after it are ours. */
export const TaskSummary = z.object({
  task_id: TaskId,
  status: TaskWord,
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
  /** Sessions that ended by the policy's own doing; of these, the ones with something to train on. */
  valid_sessions: Count,
  usable_sessions: Count,
  cancelled_sessions: Count,
  /** Attempts that infrastructure spoilt and that were made again. */
  refills: Count,
  dispatch_priority: Count,
  policy_version: Count.nullable(),
})

/** Where a result lies, for a reader that shares the server's storage, and how to know that it is whole. */
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
    summary: 'Ask for a task: one instruction, `num_samples` sessions.',
    description:
      'Answers once the task is stored. While a task with this id runs, the same body joins it and another body is refused ' +
      '(409). Once it is over, a submit starts a new run under the id, and the older run moves to `<task_id>~<run>`. 409 ' +
      'also: the id was cancelled before it was submitted, or the task was made for a policy that is too old by now. 429: ' +
      'the caller has as much queued as it may have. 503: no registered node can run the task. Unknown fields, null, and ' +
      'numbers and booleans as text are taken with `warnings`; with the header `X-Polar-Strict: true` they are refused.',
    scopes: ['trainer'],
    query: submitQuery,
    body: { ...jsonBody(SubmitRequest, 16 * MIB), adapt: adaptNvidiaTask },
    answer: json(SubmitAnswer),
    errors: [409, 429],
    isIdempotent: true,
    takesKey: true,
    idempotency:
      'With an `Idempotency-Key`: a repeat with the same key is the same task, also once it is over. Without: only while it runs.',
    examples: { body: exampleTask, answer: { task_id: 'polar-slime-7-0', status: 'running' } },
  }),
  submitBatch: route({
    method: 'post',
    path: '/tasks/batch',
    origin: 'polar',
    tag: 'tasks',
    summary: 'Ask for many tasks at once.',
    description: 'Stored all together or not at all; `outcomes` are in the order of `tasks` and say what each came to.',
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
    isIdempotent: true,
    takesKey: true,
    idempotency: 'As for one task, task by task.',
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
    summary: 'How far a task is, with the results of the sessions that are over.',
    scopes: ['read', 'trainer'],
    params: byTask,
    query: z.object({
      wait: WaitSeconds,
      known_completed: Count.optional().describe(
        'With `wait`: answer as soon as more sessions than this are over. Absent: only once the task is.',
      ),
      results: z
        .enum(['inline', 'reference'])
        .default('inline')
        .describe('`reference` leaves `results` empty and names the files in `result_paths`.'),
    }),
    answer: json(TaskStatus),
    errors: [404],
    isIdempotent: true,
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
        .describe('Remember an id that nobody has submitted, so that a submit that comes late is refused (409).'),
    }),
    answer: json(TaskStatus),
    errors: [404],
    isIdempotent: true,
    examples: { answer: { ...exampleStatus, status: 'cancelled' } },
  }),
  updateTask: route({
    method: 'patch',
    path: '/tasks/{task_id}',
    origin: 'polar',
    tag: 'tasks',
    summary: 'Change what may be changed of a task that is under way.',
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
          .describe('Null takes it back. Met already: the rest is cancelled at once.'),
      }),
    ),
    answer: json(TaskSummary),
    errors: [404, 409],
    isIdempotent: true,
    examples: { body: { dispatch_priority: 50 } },
  }),
  deleteTask: route({
    method: 'delete',
    path: '/tasks/{task_id}',
    origin: 'polar',
    tag: 'tasks',
    summary: 'Delete a task that is over, with its sessions, results and artifacts.',
    description:
      'For good: callbacks that are still to come are dropped, too. 409: it is running; cancel it first. The id is ' +
      'remembered for a day: a repeat of the submit that created it, with its `Idempotency-Key`, is refused (409).',
    scopes: ['trainer'],
    params: byTask,
    answer: json(z.object({ task_id: TaskId, deleted_sessions: Count, deleted_bytes: Count })),
    errors: [404, 409],
    isIdempotent: true,
    idempotency: 'One that was deleted is not there any more: 404.',
    examples: { answer: { task_id: 'polar-slime-7-0', deleted_sessions: 8, deleted_bytes: 731_204 } },
  }),
  retryTask: route({
    method: 'post',
    path: '/tasks/{task_id}/retry',
    origin: 'polar',
    tag: 'tasks',
    summary: 'Make the sessions of a task again that did not end by the policy’s own doing.',
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
    answer: json(z.object({ task_id: TaskId, status: TaskWord, retried_sessions: Count })),
    errors: [404, 409, 429],
    isIdempotent: true,
    idempotency: 'A session that is queued again has none of these statuses any more.',
    examples: { body: { statuses: ['ERROR'] }, answer: { task_id: 'a', status: 'running', retried_sessions: 2 } },
  }),
  listTasks: route({
    method: 'get',
    path: '/tasks',
    origin: 'nvidia',
    tag: 'tasks',
    summary: 'Tasks, newest first.',
    scopes: ['read', 'trainer'],
    query: z.object({
      status: TaskWord.optional(),
      harness: z.string().min(1).max(256).optional(),
      model: z.string().min(1).max(256).optional(),
      search: z.string().min(1).max(256).optional().describe('Found in the id of the task.'),
      since: UnixSeconds.optional().describe('Unix seconds; only those that changed since.'),
      limit: limit(1000, 200),
      cursor: Cursor.optional(),
    }),
    answer: json(z.object({ tasks: z.array(TaskSummary), ...next })),
    isIdempotent: true,
    examples: { answer: { tasks: [] } },
  }),
  listTaskSessions: route({
    method: 'get',
    path: '/tasks/{task_id}/sessions',
    origin: 'nvidia',
    tag: 'tasks',
    summary: 'The sessions of a task, in order of their sample.',
    scopes: ['read', 'trainer'],
    params: byTask,
    query: z.object({ status: SessionStatus.optional(), limit: limit(10_000, 10_000), cursor: Cursor.optional() }),
    answer: json(
      z.object({
        task_id: TaskId,
        sessions: z.array(SessionSummary),
        /** Why queued sessions do not start: no registered node has these labels. Null: some node can run them. */
        unrunnable: z.string().nullable().default(null),
        ...next,
      }),
    ),
    errors: [404],
    isIdempotent: true,
    examples: { answer: { task_id: 'polar-slime-7-0', sessions: [] } },
  }),
  streamTaskResults: route({
    method: 'get',
    path: '/tasks/{task_id}/results',
    origin: 'polar',
    tag: 'tasks',
    summary: 'The results of a task, one a line, in the order in which they were accepted.',
    description:
      'Compressed with zstd or gzip when asked for. A result keeps its place: `skip` what is there already. A session that ' +
      'was made again has a line for each time it ended; the last one counts.',
    scopes: ['read', 'trainer'],
    params: byTask,
    query: z.strictObject({
      skip: Count.default(0).describe('Lines to leave out, counted from the first.'),
      follow: z.boolean().default(false).describe('Go on until the task is over.'),
    }),
    answer: { kind: 'ndjson', schema: SessionResult, resumeBy: 'skip' },
    errors: [404],
    isIdempotent: true,
  }),
  listTaskResults: route({
    method: 'get',
    path: '/tasks/{task_id}/results/references',
    origin: 'polar',
    tag: 'tasks',
    summary: 'Where the results of a task lie.',
    scopes: ['read', 'trainer'],
    params: byTask,
    query: z.strictObject({ limit: limit(10_000, 1000), cursor: Cursor.optional() }),
    answer: json(z.object({ task_id: TaskId, results: z.array(ResultReference), ...next })),
    errors: [404],
    isIdempotent: true,
    examples: { answer: { task_id: 'polar-slime-7-0', results: [] } },
  }),
}
