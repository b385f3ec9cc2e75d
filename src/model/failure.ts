import * as z from 'zod'

/** The seam at which a failure was noticed. */
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

/** Who caused it. Only `policy` endings may be scored; the rest have no reward at all. */
export const Blame = z.enum(['caller', 'infrastructure', 'policy'])
export type Blame = z.infer<typeof Blame>

interface FailureClass {
  blame: Blame
  /** Whether the same attempt may succeed later without anyone changing anything. */
  retryable: boolean
  /** What the caller of an HTTP request sees; a relayed upstream status takes its place. */
  status: number
  meaning: string
}

/** Every way a session can fail. The docs page is made from this table. */
export const failureClasses = {
  'config.invalid': { blame: 'caller', retryable: false, status: 500, meaning: 'A setting, flag or file is wrong.' },
  'request.malformed': {
    blame: 'caller',
    retryable: false,
    status: 400,
    meaning: 'The body is not what the API takes.',
  },
  'request.too-large': { blame: 'caller', retryable: false, status: 413, meaning: 'The body exceeds the size limit.' },
  'request.unsupported-encoding': {
    blame: 'caller',
    retryable: false,
    status: 415,
    meaning: 'The body is compressed in a way we cannot read.',
  },
  'request.unauthorized': { blame: 'caller', retryable: false, status: 401, meaning: 'Session and key do not agree.' },
  'request.unknown-route': { blame: 'caller', retryable: false, status: 404, meaning: 'No such route in this API.' },
  'request.wrong-method': {
    blame: 'caller',
    retryable: false,
    status: 405,
    meaning: 'The route takes another method.',
  },
  'request.forbidden': {
    blame: 'caller',
    retryable: false,
    status: 403,
    meaning: 'The token is known, but not for this.',
  },
  'request.not-found': { blame: 'caller', retryable: false, status: 404, meaning: 'Nothing has this name here.' },
  'request.conflict': {
    blame: 'caller',
    retryable: false,
    status: 409,
    meaning: 'What was asked for does not fit what is already there.',
  },
  'request.stale': {
    blame: 'caller',
    retryable: false,
    status: 409,
    meaning: 'It is too late for this: the session has passed to another attempt, or the policy has moved on.',
  },
  'request.no-node': {
    blame: 'caller',
    retryable: false,
    status: 503,
    meaning: 'No registered node has what the task asks for, such as its kind of sandbox.',
  },
  'request.over-quota': {
    blame: 'caller',
    retryable: true,
    status: 429,
    meaning: 'The caller has as much under way as it may have.',
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
  'request.client-gone': { blame: 'policy', retryable: false, status: 499, meaning: 'The harness closed the call.' },
  'upstream.unreachable': {
    blame: 'infrastructure',
    retryable: true,
    status: 502,
    meaning: 'No connection to the engine.',
  },
  'upstream.rate-limited': {
    blame: 'infrastructure',
    retryable: true,
    status: 429,
    meaning: 'The engine asked to wait.',
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
    meaning: 'The engine was silent too long.',
  },
  'upstream.bad-stream': {
    blame: 'infrastructure',
    retryable: true,
    status: 502,
    meaning: 'The engine sent bytes that are not the protocol, or ended a stream early.',
  },
  'runtime.gone': { blame: 'infrastructure', retryable: true, status: 500, meaning: 'The sandbox vanished.' },
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
    meaning: 'This kind of sandbox cannot do what was asked of it.',
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
    meaning: 'Files could not be copied into the sandbox, or out of it.',
  },
  'workspace.file-missing': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning: 'A file that was to be read from the sandbox is not there.',
  },
  'workspace.too-large': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning: 'What was to be read from the sandbox exceeds the limits on size or number.',
  },
  'workspace.unsafe-file': {
    blame: 'policy',
    retryable: false,
    status: 500,
    meaning: 'The sandbox prepared files that cannot be copied safely: devices, or names that lead elsewhere.',
  },
  'runtime.prepare-failed': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'A step that makes the sandbox ready did not succeed.',
  },
  'runtime.image-missing': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The image is not here.',
  },
  'harness.not-found': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The harness did not start.',
  },
  'harness.install-failed': { blame: 'infrastructure', retryable: true, status: 500, meaning: 'Installing it failed.' },
  'harness.damaged': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The installed harness is not what was installed.',
  },
  'harness.bad-setup': {
    blame: 'infrastructure',
    retryable: false,
    status: 500,
    meaning: 'The harness refused its settings or arguments.',
  },
  'harness.no-answer': {
    blame: 'infrastructure',
    retryable: true,
    status: 500,
    meaning: 'The harness failed, or its time ran out, before the model had given one answer: not the policy’s doing.',
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
    meaning: 'The harness, or what it ran, used more memory than its sandbox has.',
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
    meaning: 'The test log never names tests that must pass; no reward.',
  },
  'session.cancelled': { blame: 'caller', retryable: false, status: 409, meaning: 'Somebody asked for it to end.' },
  'session.init-timeout': {
    blame: 'infrastructure',
    retryable: true,
    status: 504,
    meaning: 'The sandbox was not ready within the time for it.',
  },
  'session.agent-timeout': {
    blame: 'policy',
    retryable: false,
    status: 504,
    meaning: "The agent's time ran out; what it did until then is kept and graded.",
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
    meaning: 'The node ended while the session was under way; what was captured is kept.',
  },
  'session.gateway-lost': {
    blame: 'infrastructure',
    retryable: true,
    status: 503,
    meaning: 'The gateway process ended during a call or is being started again; calls that had ended are kept.',
  },
  'server.unreachable': {
    blame: 'infrastructure',
    retryable: true,
    status: 503,
    meaning: 'No answer from the rollout server, or one that was cut short.',
  },
  'server.failed': {
    blame: 'infrastructure',
    retryable: true,
    status: 502,
    meaning: 'The rollout server, or something on the way to it, answered with an error that says no more.',
  },
  'server.bad-answer': {
    blame: 'infrastructure',
    retryable: false,
    status: 502,
    meaning: 'The answer is not what the API of the rollout server gives: another version, or another program.',
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
  'internal.bug': { blame: 'infrastructure', retryable: false, status: 500, meaning: 'A defect of ours.' },
} as const satisfies Record<`${Boundary}.${string}`, FailureClass>

export type FailureCode = keyof typeof failureClasses
export const FailureCode = z.enum(Object.keys(failureClasses) as [FailureCode, ...FailureCode[]])

/** A failure as data: what is stored with a turn or session and rendered to a caller. */
export const Failure = z.object({
  code: FailureCode,
  message: z.string(),
  /** Status to answer with; for `upstream.*` the engine's own where it gave one. */
  status: z.int(),
  /** Seconds the engine asked the caller to wait; absent when it did not say. */
  retryAfterSeconds: z.number().optional(),
  /** The field at fault, where one is known. */
  param: z.string().optional(),
})
export type Failure = z.infer<typeof Failure>

/** The one error type that crosses our seams. Anything else thrown is a bug, or is given a boundary by `attribute`. */
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

/** What was thrown, as a failure. An error that already has a boundary keeps it; anything else is our bug. */
export function toFailure(error: unknown): Failure {
  if (error instanceof RolloutError) return error.failure
  const message = error instanceof Error ? error.message : String(error)
  return { code: 'internal.bug', message, status: failureClasses['internal.bug'].status }
}
