import { promisify } from 'node:util'
import { zstdCompress } from 'node:zlib'
import type { Problem } from '../../api/error-body.ts'
import { MAX_RESULT_MEMBERS, MAX_RESULT_VALUES, PostedResult } from '../../api/routes/node-routes.ts'
import { listProblems, parseJson } from '../../api/read-call.ts'
import { holdsMoreMembersThan } from '../../lib/json/json-depth.ts'
import { type Failure, RolloutError } from '../../model/failure.ts'
import { type PostedOutcome, toOutcome } from './to-outcome.ts'

/** A result posted by an NVIDIA Polar node: the fields that the server uses, or why the body is invalid. */
export type PostedReading =
  | {
      kind: 'read'
      /** Undefined or empty if the result has none. */
      nodeId: string | undefined
      outcome: PostedOutcome
      /** JSON of the whole result with defaults filled in, as it is stored. */
      compressed: Uint8Array<ArrayBuffer>
    }
  | { kind: 'invalid'; problems: Problem[] }
  | { kind: 'failed'; failure: Failure }

const compress = promisify(zstdCompress)

/** Parses, validates and compresses a posted result. Runs in a worker thread for long ones. */
export async function readPostedResult(text: Buffer): Promise<PostedReading> {
  try {
    if (holdsMoreMembersThan(text, MAX_RESULT_MEMBERS)) {
      const message = `The body holds more than ${MAX_RESULT_MEMBERS} objects, lists and keys.`
      throw new RolloutError('request.malformed', message, { param: 'body' })
    }
    const parsed = PostedResult.safeParse(parseJson(text, MAX_RESULT_VALUES), { reportInput: true })
    if (!parsed.success) return { kind: 'invalid', problems: listProblems('body', parsed.error) }
    const compressed = await compress(JSON.stringify(parsed.data))
    const nodeId = parsed.data.node_id ?? undefined
    return { kind: 'read', nodeId, outcome: toOutcome(parsed.data), compressed }
  } catch (error) {
    if (!(error instanceof RolloutError)) throw error
    return { kind: 'failed', failure: error.failure }
  }
}
