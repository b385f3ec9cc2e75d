import { promisify } from 'node:util'
import { zstdDecompress } from 'node:zlib'
import { MAX_RESULT_MEMBERS, MAX_RESULT_VALUES } from '../../api/routes/node-routes.ts'
import { holdsMoreMembersThan, holdsMoreValuesThan, nestsDeeperThan } from '../../lib/json/json-depth.ts'
import { endsWithZstdFrame } from '../../lib/archive/zstd-frames.ts'
import { SessionResult } from '../../model/session.ts'

/** The attempt that the result must belong to. */
export interface ResultIdentity {
  sessionId: string
  attempt: number
  taskId: string
  nodeId: string
  status: string
}

/** Limit on the decompressed text: V8 strings hold at most twice as much. */
export const MAX_RESULT_BYTES = 256 * 1024 * 1024
const MAX_JSON_DEPTH = 200

const decompress = promisify(zstdDecompress)

/** `too-long`: longer than `maxBytes` when decompressed. `wrong`: predicate of a sentence whose subject is the result. */
export type ResultProblem = 'too-long' | { wrong: string }

/** Undefined if the bytes are the complete and valid result of the attempt. */
export async function findResultProblem(
  compressed: Uint8Array,
  identity: ResultIdentity,
  maxBytes: number = MAX_RESULT_BYTES,
): Promise<ResultProblem | undefined> {
  if (!endsWithZstdFrame(compressed)) return { wrong: 'is not compressed with zstd, or is incomplete' }
  let text: Buffer
  try {
    text = await decompress(compressed, { maxOutputLength: maxBytes })
  } catch (error) {
    const isLong = (error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE'
    return isLong ? 'too-long' : { wrong: 'is not compressed with zstd' }
  }
  if (nestsDeeperThan(text, MAX_JSON_DEPTH)) return { wrong: `nests deeper than ${MAX_JSON_DEPTH} levels` }
  if (holdsMoreValuesThan(text, MAX_RESULT_VALUES)) return { wrong: `holds more than ${MAX_RESULT_VALUES} values` }
  if (holdsMoreMembersThan(text, MAX_RESULT_MEMBERS)) {
    return { wrong: `holds more than ${MAX_RESULT_MEMBERS} objects, lists and keys` }
  }
  let value: unknown
  try {
    value = JSON.parse(text.toString())
  } catch {
    return { wrong: 'is not JSON' }
  }
  const parsed = SessionResult.safeParse(value)
  if (parsed.success) return findMismatch(parsed.data, identity)
  const [issue] = parsed.error.issues
  return { wrong: `has an invalid ${issue?.path.join('.')}: ${issue?.message}` }
}

/** Detects a node that mixed up two results. */
function findMismatch(
  { session_id, task_id, node_id, metadata, ...result }: SessionResult,
  identity: ResultIdentity,
): ResultProblem | undefined {
  if (session_id !== identity.sessionId) return { wrong: `belongs to session ${session_id}` }
  if (task_id !== identity.taskId) return { wrong: `belongs to task ${JSON.stringify(task_id)}` }
  const status = result.polar_status ?? result.status
  if (status !== identity.status) return { wrong: `has status ${status}, but the outcome has ${identity.status}` }
  if (node_id != null && node_id !== identity.nodeId) return { wrong: `belongs to node ${node_id}` }
  // Our nodes store the attempt; results of other programs need not.
  const { attempt } = (metadata['polar'] ?? {}) as { attempt?: unknown }
  if (typeof attempt === 'number' && attempt !== identity.attempt) return { wrong: `belongs to attempt ${attempt}` }
  return undefined
}
