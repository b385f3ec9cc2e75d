import * as z from 'zod'
import type { SessionResult } from '../model/session.ts'
import type { Trace } from '../model/trajectory.ts'

/** A run of trained tokens that one model call sampled after a prompt. All arrays have the length of `ids`. */
export interface TrainCall {
  promptIds: Int32Array
  ids: Int32Array
  /** As captured while the tokens were sampled. */
  logprobs: Float32Array
  /** Version of the weights that sampled each token. */
  versions: Int32Array
}

/** A graded session. */
export interface TrainSession {
  id: string
  /** Sessions of one group have the same task; their rewards are compared. */
  group: string
  reward: number
  calls: readonly TrainCall[]
}

/** The data of a batch contradict each other. Nothing was trained on it. */
export class TrainDataError extends Error {
  override readonly name = 'TrainDataError'
}

/** Reads what a trainer needs from a result of the server. Undefined for a session without a reward. */
export function toTrainSession({
  session_id: id,
  task_id: group,
  trajectory,
}: SessionResult): TrainSession | undefined {
  const reward = trajectory.traces[0]?.reward
  if (reward == null) return undefined
  return { id, group, reward, calls: trajectory.traces.flatMap((trace) => listCalls(trace, id)) }
}

const Spans = z.array(
  z.looseObject({
    from: z.int(),
    weight_version: z.string().nullish(),
    newest_weight_version: z.string().nullish(),
  }),
)

/** Divides a trace into runs of tokens with mask 1. The prompt of a run is everything before it. */
function listCalls(trace: Trace, sessionId: string): TrainCall[] {
  const ids = Int32Array.from([...trace.prompt_ids, ...trace.response_ids])
  const logprobs = trace.response_logprobs
  const calls: TrainCall[] = []
  const offset = trace.prompt_ids.length
  for (let from = 0; from < trace.loss_mask.length; from++) {
    if (trace.loss_mask[from] === 0) continue
    let to = from
    while (trace.loss_mask[to] === 1) to++
    if (logprobs == null) throw new TrainDataError(`Session ${sessionId} has tokens without log probabilities.`)
    calls.push({
      promptIds: ids.subarray(0, offset + from),
      ids: ids.subarray(offset + from, offset + to),
      logprobs: Float32Array.from(logprobs.slice(from, to), (value) => value ?? Number.NaN),
      versions: listVersions(trace, offset + from, offset + to, sessionId),
    })
    from = to
  }
  return calls
}

function listVersions(trace: Trace, from: number, to: number, sessionId: string): Int32Array {
  const spans = Spans.parse(trace.metadata['spans'])
  return Int32Array.from({ length: to - from }, (_, i) => {
    const span = spans.findLast((candidate) => candidate.from <= from + i)
    if (span?.weight_version == null || span.newest_weight_version != null) {
      throw new TrainDataError(`Session ${sessionId} has tokens whose weight version is not certain.`)
    }
    return Number(span.weight_version)
  })
}
