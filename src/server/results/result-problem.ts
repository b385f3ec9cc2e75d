import { promisify } from 'node:util'
import { zstdDecompress } from 'node:zlib'
import { MOST_RESULT_MEMBERS, MOST_RESULT_VALUES } from '../../api/routes/node-routes.ts'
import { holdsMoreMembersThan, holdsMoreValuesThan, nestsDeeperThan } from '../../lib/json/json-depth.ts'
import { endsWithZstdFrame } from '../../lib/archive/zstd-frames.ts'
import { SessionResult } from '../../model/session.ts'

/** Whose result it must be. */
export interface ResultIdentity {
  sessionId: string
  attempt: number
  taskId: string
  nodeId: string
  status: string
}

/** Of the text: a string of the platform holds no more than twice that. */
export const MOST_RESULT_BYTES = 256 * 1024 * 1024
const DEEPEST_JSON = 200

const decompress = promisify(zstdDecompress)

/** `too-long`: than the bytes it may be when decompressed. Else what is wrong with it, as the rest of a sentence. */
export type ResultProblem = 'too-long' | { wrong: string }

/** Undefined: it is the whole and right result of that session. */
export async function findResultProblem(
  compressed: Uint8Array,
  identity: ResultIdentity,
  maxBytes: number = MOST_RESULT_BYTES,
): Promise<ResultProblem | undefined> {
  if (!endsWithZstdFrame(compressed)) return { wrong: 'is not compressed with zstd, or not all of it is there' }
  let text: Buffer
  try {
    text = await decompress(compressed, { maxOutputLength: maxBytes })
  } catch (error) {
    const isLong = (error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE'
    return isLong ? 'too-long' : { wrong: 'is not compressed with zstd' }
  }
  if (nestsDeeperThan(text, DEEPEST_JSON)) return { wrong: `nests deeper than ${DEEPEST_JSON} levels` }
  if (holdsMoreValuesThan(text, MOST_RESULT_VALUES)) return { wrong: `holds more than ${MOST_RESULT_VALUES} values` }
  if (holdsMoreMembersThan(text, MOST_RESULT_MEMBERS)) {
    return { wrong: `holds more than ${MOST_RESULT_MEMBERS} objects, lists and keys` }
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
  return { wrong: `has a wrong ${issue?.path.join('.')}: ${issue?.message}` }
}

/** That a node mixes up two results must not be found out by the trainer. */
function findMismatch(
  { session_id, task_id, node_id, metadata, ...result }: SessionResult,
  identity: ResultIdentity,
): ResultProblem | undefined {
  if (session_id !== identity.sessionId) return { wrong: `is that of session ${session_id}` }
  if (task_id !== identity.taskId) return { wrong: `is of task ${JSON.stringify(task_id)}` }
  const status = result.polar_status ?? result.status
  if (status !== identity.status) return { wrong: `says ${status}, and the outcome ${identity.status}` }
  if (node_id != null && node_id !== identity.nodeId) return { wrong: `is of node ${node_id}` }
  // Our nodes say which attempt it is of; in a file that others wrote nothing need.
  const { attempt } = (metadata['polar'] ?? {}) as { attempt?: unknown }
  if (typeof attempt === 'number' && attempt !== identity.attempt) return { wrong: `is of attempt ${attempt}` }
  return undefined
}
