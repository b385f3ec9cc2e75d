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

/** Every failure of a session. The docs page is generated from this table. */
export const failureClasses = {
  'config.invalid': { blame: 'caller', retryable: false, status: 500, meaning: 'A setting, flag or file is wrong.' },
  'request.malformed': {
    blame: 'caller',
    retryable: false,
    status: 400,
    meaning: 'The body does not match the schema of the API.',
  },
  'request.too-large': { blame: 'caller', retryable: false, status: 413, meaning: 'The body exceeds the size limit.' },
  'request.unsupported-encoding': {
    blame: 'caller',
    retryable: false,
    status: 415,
    meaning: 'The compression of the body is not supported.',
  },
  'request.unauthorized': {
    blame: 'caller',
    retryable: false,
    status: 401,
    meaning: 'The key does not belong to the session.',
  },
  'request.unknown-route': { blame: 'caller', retryable: false, status: 404, meaning: 'The API has no such route.' },
  'request.wrong-method': {
    blame: 'caller',
    retryable: false,
    status: 405,
    meaning: 'The route does not support this method.',
  },
  'request.forbidden': {
    blame: 'caller',
    retryable: false,
    status: 403,
    meaning: 'The token does not permit this request.',
  },
  'request.not-found': { blame: 'caller', retryable: false, status: 404, meaning: 'The named object does not exist.' },
  'request.conflict': {
    blame: 'caller',
    retryable: false,
    status: 409,
    meaning: 'The request conflicts with existing data.',
  },
  'request.stale': {
    blame: 'caller',
    retryable: false,
    status: 409,
    meaning: 'The request is too late: the session has another attempt, or the policy has a newer version.',
  },
  'request.no-node': {
    blame: 'caller',
    retryable: false,
    status: 503,
    meaning: 'No registered node satisfies the requirements of the task, such as its kind of sandbox.',
  },
  'request.over-quota': {
    blame: 'caller',
    retryable: true,
    status: 429,
    meaning: 'The quota of the caller is used up.',
  },
  'request.over-storage': {
    blame: 'policy',
    retryable: false,
    status: 403,
    meaning: 'The call log of the session has reached its limit; further model calls of the session are refused.',
  },
  'request.crashed-gateway': {
    blame: 'policy',
    retryable: false,
    status: 403,
    meaning:
      'The gateway process died repeatedly, each time during calls of this session; its further calls are refused.',
  },
  'request.context-overflow': {
    blame: 'policy',
    retryable: false,
    status: 400,
    meaning: 'Prompt and answer do not fit in the model context.',
  },
  'request.client-gone': {
    blame: 'policy',
    retryable: false,
    status: 499,
    meaning: 'The harness closed the connection.',
  },
  'upstream.unreachable': {
    blame: 'infrastructure',
    retryable: true,
    status: 502,
    meaning: 'The connection to the engine failed.',
  },
  'upstream.rate-limited': {
    blame: 'infrastructure',
    retryable: true,
    status: 429,
    meaning: 'The engine limited the rate of requests.',
  },
  'upstream.overloaded': {
    blame: 'infrastructure',
    retryable: true,
    status: 503,
    meaning: 'The engine is overloaded.',
  },
  'upstream.refused': {
    blame: 'caller',
    retryable: false,
    status: 400,
    meaning: 'The engine refused the request (4xx).',
  },
  'upstream.failed': {
    blame: 'infrastructure',
    retryable: true,
    status: 502,
    meaning: 'The engine answered with a 5xx.',
  },
  'upstream.out-of-memory': {
    blame: 'infrastructure',
    retryable: true,
    status: 503,
    meaning: 'The engine ran out of memory.',
  },
  'upstream.reset': {
    blame: 'infrastructure',
    retryable: true,
    status: 502,
    meaning: 'The engine dropped the connection.',
  },
  'upstream.timeout': {
    blame: 'infrastructure',
    retryable: true,
    status: 504,
    meaning: 'The engine did not answer in time.',
  },
  'upstream.bad-stream': {
    blame: 'infrastructure',
    retryable: true,
    status: 502,
    meaning: 'The engine violated the protocol or ended a stream early.',
  },
  'runtime.gone': { blame: 'infrastructure', retryable: true, status: 500, meaning: 'The sandbox no longer exists.' },
  'runtime.out-of-disk': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'The sandbox disk is full.',
  },
  'runtime.unavailable': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'This kind of sandbox cannot run on this machine.',
  },
  'runtime.unsupported': {
    blame: 'caller',
    retryable: false,
    status: 400,
    meaning: 'This kind of sandbox does not support the request.',
  },
  'runtime.start-failed': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'The sandbox could not be started.',
  },
  'runtime.copy-failed': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'Files could not be copied to or from the sandbox.',
  },
  'workspace.file-missing': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning: 'A file that must be read from the sandbox does not exist.',
  },
  'workspace.too-large': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning: 'Files to be read from the sandbox exceed the limits on size or number.',
  },
  'workspace.unsafe-file': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning: 'The sandbox contains files that cannot be copied safely: devices, or paths that lead outside.',
  },
  'runtime.prepare-failed': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'A preparation step of the sandbox failed.',
  },
  'runtime.image-missing': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The image does not exist on this machine.',
  },
  'harness.not-found': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The harness did not start.',
  },
  'harness.install-failed': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'The installation of the harness failed.',
  },
  'harness.damaged': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The installed files of the harness were changed.',
  },
  'harness.bad-setup': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The harness rejected its settings or arguments.',
  },
  'harness.no-answer': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning:
      'The harness failed or timed out before the first answer of the model, so the agent did not cause the failure.',
  },
  'harness.exit-nonzero': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning: 'The harness ended with an error.',
  },
  'harness.out-of-memory': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning: 'The harness or its child processes exceeded the memory limit of the sandbox.',
  },
  'evaluator.crashed': { blame: 'infrastructure', retryable: true, status: 500, meaning: 'Grading failed; no reward.' },
  'evaluator.timeout': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'Grading took too long; no reward.',
  },
  'evaluator.tests-not-reported': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The test log does not report tests that must pass; no reward.',
  },
  'session.cancelled': {
    blame: 'caller',
    retryable: false,
    status: 409,
    meaning: 'The session was cancelled by request.',
  },
  'session.init-timeout': {
    blame: 'infrastructure',
    retryable: true,
    status: 504,
    meaning: 'The sandbox was not ready within its time limit.',
  },
  'session.agent-timeout': {
    blame: 'policy',
    retryable: false,
    status: 504,
    meaning: 'The time limit of the agent was exceeded; its work until then is kept and graded.',
  },
  'session.too-large': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning:
      'Building the recorded calls needs more memory or time than one session may use: no samples, lowest reward.',
  },
  'session.node-lost': {
    blame: 'infrastructure',
    retryable: true,
    status: 503,
    meaning: 'The node ended during the session; captured calls are kept.',
  },
  'session.gateway-lost': {
    blame: 'infrastructure',
    retryable: true,
    status: 503,
    meaning: 'The gateway process ended during a call or is restarting; completed calls are kept.',
  },
  'server.unreachable': {
    blame: 'infrastructure',
    retryable: true,
    status: 503,
    meaning: 'The rollout server did not answer, or its answer was truncated.',
  },
  'server.failed': {
    blame: 'infrastructure',
    retryable: true,
    status: 502,
    meaning: 'The rollout server, or a proxy before it, answered with an error without details.',
  },
  'server.bad-answer': {
    blame: 'infrastructure',
    retryable: false,
    status: 502,
    meaning: 'The answer does not match the API of the rollout server: another version, or another program.',
  },
  'store.unavailable': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'The log could not be written; the session is incomplete.',
  },
  'store.corrupt': { blame: 'infrastructure', retryable: false, status: 500, meaning: 'A stored record is damaged.' },
  'store.newer-schema': {
    blame: 'caller',
    retryable: false,
    status: 500,
    meaning: 'The record was written by a newer version of Polar.',
  },
  'internal.bug': { blame: 'infrastructure', retryable: false, status: 500, meaning: 'A defect of Polar.' },
} as const satisfies Record<`${Boundary}.${string}`, FailureClass>

export type FailureCode = keyof typeof failureClasses
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
