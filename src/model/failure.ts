import * as z from 'zod'

/** The component boundary at which a failure was detected. */
export const Boundary = z.enum([
  'config',
  'request',
  'upstream',
  'runtime',
  'workspace',
  'harness',
  'evaluator',
  'session',
  'server',
  'store',
  'internal',
])
export type Boundary = z.infer<typeof Boundary>

/** Cause of a failure. Only sessions that failed by `policy` are graded; others have no reward. */
export const Blame = z.enum(['caller', 'infrastructure', 'policy'])
export type Blame = z.infer<typeof Blame>

interface FailureClass {
  blame: Blame
  /** Whether a retry without changes may succeed. */
  retryable: boolean
  /** HTTP status for the caller. A relayed upstream status replaces it. */
  status: number
  meaning: string
}

/** Every failure of a session: blame, whether a retry may succeed, HTTP status, meaning. */
const TABLE = {
  'config.invalid': ['caller', 'final', 500, 'A setting, flag or file is wrong.'],
  'request.malformed': ['caller', 'final', 400, 'The body does not match the schema of the API.'],
  'request.too-large': ['caller', 'final', 413, 'The body exceeds the size limit.'],
  'request.unsupported-encoding': ['caller', 'final', 415, 'The compression of the body is not supported.'],
  'request.unauthorized': ['caller', 'final', 401, 'The key does not belong to the session.'],
  'request.unknown-route': ['caller', 'final', 404, 'The API has no such route.'],
  'request.wrong-method': ['caller', 'final', 405, 'The route does not support this method.'],
  'request.forbidden': ['caller', 'final', 403, 'The token does not permit this request.'],
  'request.not-found': ['caller', 'final', 404, 'The named object does not exist.'],
  'request.conflict': ['caller', 'final', 409, 'The request conflicts with existing data.'],
  'request.stale': ['caller', 'final', 409, 'The session has a newer attempt, or the policy a newer version.'],
  'request.no-node': ['caller', 'final', 503, 'No registered node satisfies the requirements of the task.'],
  'request.over-quota': ['caller', 'retry', 429, 'The quota of the caller is used up.'],
  'request.over-storage': [
    'policy',
    'final',
    403,
    'The call log of the session has reached its limit; further model calls of the session are refused.',
  ],
  'request.crashed-gateway': [
    'policy',
    'final',
    403,
    'The gateway process died repeatedly, each time during calls of this session; its further calls are refused.',
  ],
  'request.context-overflow': ['policy', 'final', 400, 'Prompt and answer do not fit in the model context.'],
  'request.client-gone': ['policy', 'final', 499, 'The harness closed the connection.'],
  'upstream.unreachable': ['infrastructure', 'retry', 502, 'The connection to the engine failed.'],
  'upstream.rate-limited': ['infrastructure', 'retry', 429, 'The engine limited the rate of requests.'],
  'upstream.overloaded': ['infrastructure', 'retry', 503, 'The engine is overloaded.'],
  'upstream.refused': ['caller', 'final', 400, 'The engine refused the request (4xx).'],
  'upstream.failed': ['infrastructure', 'retry', 502, 'The engine answered with a 5xx.'],
  'upstream.out-of-memory': ['infrastructure', 'retry', 503, 'The engine ran out of memory.'],
  'upstream.reset': ['infrastructure', 'retry', 502, 'The engine dropped the connection.'],
  'upstream.timeout': ['infrastructure', 'retry', 504, 'The engine did not answer in time.'],
  'upstream.bad-stream': ['infrastructure', 'retry', 502, 'The engine violated the protocol or ended a stream early.'],
  'runtime.gone': ['infrastructure', 'retry', 500, 'The sandbox no longer exists.'],
  'runtime.out-of-disk': ['infrastructure', 'retry', 500, 'The sandbox disk is full.'],
  'runtime.unavailable': ['infrastructure', 'final', 500, 'This kind of sandbox cannot run on this machine.'],
  'runtime.unsupported': ['caller', 'final', 400, 'This kind of sandbox does not support the request.'],
  'runtime.start-failed': ['infrastructure', 'retry', 500, 'The sandbox could not be started.'],
  'runtime.copy-failed': ['infrastructure', 'retry', 500, 'Files could not be copied to or from the sandbox.'],
  'workspace.file-missing': ['policy', 'final', 500, 'A file that must be read from the sandbox does not exist.'],
  'workspace.too-large': ['policy', 'final', 500, 'Files of the sandbox exceed the limits on size or number.'],
  'workspace.unsafe-file': [
    'policy',
    'final',
    500,
    'A file cannot be copied safely: a device, or a path that leads outside.',
  ],
  'runtime.prepare-failed': ['infrastructure', 'retry', 500, 'A preparation step of the sandbox failed.'],
  'runtime.image-missing': ['infrastructure', 'final', 500, 'The image does not exist on this machine.'],
  'harness.not-found': ['infrastructure', 'final', 500, 'The harness did not start.'],
  'harness.install-failed': ['infrastructure', 'retry', 500, 'The installation of the harness failed.'],
  'harness.damaged': ['infrastructure', 'final', 500, 'The installed files of the harness were changed.'],
  'harness.bad-setup': ['infrastructure', 'final', 500, 'The harness rejected its settings or arguments.'],
  'harness.no-answer': [
    'infrastructure',
    'retry',
    500,
    'The harness failed or timed out before the first answer of the model, so the agent did not cause the failure.',
  ],
  'harness.exit-nonzero': ['policy', 'final', 500, 'The harness ended with an error.'],
  'harness.out-of-memory': ['policy', 'final', 500, 'The sandbox exceeded its memory limit.'],
  'evaluator.crashed': ['infrastructure', 'retry', 500, 'Grading failed; no reward.'],
  'evaluator.timeout': ['infrastructure', 'retry', 500, 'Grading took too long; no reward.'],
  'evaluator.tests-not-reported': ['infrastructure', 'final', 500, 'The test log lacks required tests; no reward.'],
  'session.cancelled': ['caller', 'final', 409, 'The session was cancelled by request.'],
  'session.init-timeout': ['infrastructure', 'retry', 504, 'The sandbox was not ready within its time limit.'],
  'session.agent-timeout': ['policy', 'final', 504, 'The time limit of the agent is over; its work is graded.'],
  'session.too-large': [
    'policy',
    'final',
    500,
    'Building the recorded calls needs more memory or time than one session may use: no samples, lowest reward.',
  ],
  'session.node-lost': ['infrastructure', 'retry', 503, 'The node ended during the session; captured calls are kept.'],
  'session.gateway-lost': [
    'infrastructure',
    'retry',
    503,
    'The gateway process ended or restarts; completed calls are kept.',
  ],
  'server.unreachable': ['infrastructure', 'retry', 503, 'The rollout server did not answer completely.'],
  'server.failed': ['infrastructure', 'retry', 502, 'The server or a proxy answered with an error without details.'],
  'server.bad-answer': ['infrastructure', 'final', 502, 'The answer does not match the API of the rollout server.'],
  'server.unconfirmed': ['infrastructure', 'final', 504, 'Some nodes have not confirmed a pause or a version in time.'],
  'store.unavailable': ['infrastructure', 'retry', 500, 'The log could not be written; the session is incomplete.'],
  'store.corrupt': ['infrastructure', 'final', 500, 'A stored record is damaged.'],
  'store.newer-schema': ['caller', 'final', 500, 'The record was written by a newer version of Polar.'],
  'internal.bug': ['infrastructure', 'final', 500, 'A defect of Polar.'],
} as const satisfies Record<`${Boundary}.${string}`, readonly [Blame, 'retry' | 'final', number, string]>

/** The docs page is generated from this table. */
export const failureClasses = Object.fromEntries(
  Object.entries(TABLE).map(([code, [blame, retry, status, meaning]]) => [
    code,
    { blame, retryable: retry === 'retry', status, meaning },
  ]),
) as Readonly<Record<keyof typeof TABLE, FailureClass>>

export type FailureCode = keyof typeof TABLE
export const FailureCode = z.enum(Object.keys(failureClasses) as [FailureCode, ...FailureCode[]])

/** A failure as data: what is stored with a turn or session and rendered to a caller. */
export const Failure = z.object({
  code: FailureCode,
  message: z.string(),
  /** HTTP status; for `upstream.*` the engine's status, if it sent one. */
  status: z.int(),
  /** Delay in seconds that the engine requested; absent if it requested none. */
  retryAfterSeconds: z.number().optional(),
  /** The invalid field; absent if unknown. */
  param: z.string().optional(),
})
export type Failure = z.infer<typeof Failure>

/** The only error type that crosses component boundaries. Any other error becomes `internal.bug`. */
export class RolloutError extends Error {
  override readonly name = 'RolloutError'
  readonly failure: Failure

  constructor(
    code: FailureCode,
    message: string,
    options: { cause?: unknown } & Partial<Omit<Failure, 'code' | 'message'>> = {},
  ) {
    const { cause, ...fields } = options
    super(message, cause === undefined ? undefined : { cause })
    this.failure = { code, message, status: failureClasses[code].status, ...fields }
  }

  get code(): FailureCode {
    return this.failure.code
  }

  get boundary(): Boundary {
    return boundaryOf(this.failure.code)
  }

  get blame(): Blame {
    return failureClasses[this.failure.code].blame
  }

  get retryable(): boolean {
    return failureClasses[this.failure.code].retryable
  }
}

export function boundaryOf(code: FailureCode): Boundary {
  return Boundary.parse(code.slice(0, code.indexOf('.')))
}

/** Converts an error to a failure. An error that is not a RolloutError becomes `internal.bug`. */
export function toFailure(error: unknown): Failure {
  if (error instanceof RolloutError) return error.failure
  const message = error instanceof Error ? error.message : String(error)
  return { code: 'internal.bug', message, status: failureClasses['internal.bug'].status }
}
