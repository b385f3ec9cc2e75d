import { promisify } from 'node:util'
import { zstdDecompress } from 'node:zlib'
import { createLimit } from '../lib/limit.ts'
import { nestsDeeperThan } from '../lib/json-depth.ts'
import { RolloutError } from '../model/failure.ts'
import type { SessionOutcome } from '../model/session-outcome.ts'
import { SessionResult } from '../model/session.ts'

/** Throws `request.malformed` (422) for what is not the result of this very session. */
export type CheckResult = (compressed: Uint8Array, outcome: SessionOutcome) => Promise<void>

/** Of the text: a string of the platform holds no more than twice that. */
export const MOST_RESULT_BYTES = 256 * 1024 * 1024
const DEEPEST_JSON = 200
const AT_ONCE = 2

export function createCheckResult(): CheckResult {
  const limit = createLimit(AT_ONCE)
  return (compressed, outcome) => limit(() => check(compressed, outcome))
}

const decompress = promisify(zstdDecompress)

async function check(compressed: Uint8Array, outcome: SessionOutcome): Promise<void> {
  let text: Buffer
  try {
    text = await decompress(compressed, { maxOutputLength: MOST_RESULT_BYTES })
  } catch (error) {
    throw wrong(outcome, `is not zstd, or is longer than ${MOST_RESULT_BYTES} bytes when decompressed`, error)
  }
  if (nestsDeeperThan(text, DEEPEST_JSON)) throw wrong(outcome, `nests deeper than ${DEEPEST_JSON} levels`)
  let value: unknown
  try {
    value = JSON.parse(text.toString())
  } catch (error) {
    throw wrong(outcome, 'is not JSON', error)
  }
  const parsed = SessionResult.safeParse(value)
  if (!parsed.success) {
    const [issue] = parsed.error.issues
    throw wrong(outcome, `has a wrong ${issue?.path.join('.')}: ${issue?.message}`)
  }
  assertSame(parsed.data, outcome)
}

/** That a node mixes up two results must not be found out by the trainer. */
function assertSame(result: SessionResult, outcome: SessionOutcome): void {
  const { sessionId, taskId, nodeId, status } = outcome
  if (result.session_id !== sessionId) throw wrong(outcome, `is that of session ${result.session_id}`)
  if (result.task_id !== taskId) throw wrong(outcome, `is of task ${JSON.stringify(result.task_id)}`)
  if (result.status !== status) throw wrong(outcome, `says ${result.status}, and the outcome ${status}`)
  if (result.node_id != null && result.node_id !== nodeId) throw wrong(outcome, `is of node ${result.node_id}`)
}

function wrong({ sessionId, attempt }: SessionOutcome, what: string, cause?: unknown): RolloutError {
  return new RolloutError('request.malformed', `The result of attempt ${attempt} at session ${sessionId} ${what}.`, {
    status: 422,
    param: 'body.result_upload_id',
    cause,
  })
}
