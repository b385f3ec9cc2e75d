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
    provenance: z.string(),
    weight_version: z.string().nullish(),
    newest_weight_version: z.string().nullish(),
  }),
)

/** Divides a trace into runs of tokens with mask 1. The prompt of a run is everything before it. */
function listCalls(trace: Trace, sessionId: string): TrainCall[] {
  const { prompt_ids: prompt, loss_mask: mask, response_logprobs: logprobs } = trace
  const ids = Int32Array.from([...prompt, ...trace.response_ids])
  const calls: TrainCall[] = []
  for (let from = 0; from < mask.length; from++) {
    if (mask[from] === 0) continue
    let to = from
    while (mask[to] === 1) to++
    if (logprobs == null) throw new TrainDataError(`Session ${sessionId} has tokens without log probabilities.`)
    const [start, end] = [prompt.length + from, prompt.length + to]
    calls.push({
      promptIds: ids.subarray(0, start),
      ids: ids.subarray(start, end),
      logprobs: Float32Array.from(logprobs.slice(from, to), (value) => value ?? Number.NaN),
      versions: listVersions(trace, start, end, sessionId),
    })
    from = to
  }
  return calls
}

/** Throws TrainDataError unless the tokens from `start` to `end` are exactly those that a call sampled, with known versions. */
function listVersions(trace: Trace, start: number, end: number, sessionId: string): Int32Array {
  const spans = Spans.parse(trace.metadata['spans']).map((span, i, all) => ({
    ...span,
    to: all[i + 1]?.from ?? trace.prompt_ids.length + trace.response_ids.length,
  }))
  const inside = spans.filter(({ from, to }) => from < end && to > start)
  const isWhole = inside[0]?.from === start && inside.at(-1)?.to === end
  if (!isWhole || inside.some(({ provenance }) => provenance !== 'sampled')) {
    throw new TrainDataError(
      `Session ${sessionId}: the mask covers tokens ${start} to ${end}, which are not the sampled tokens of a call.`,
    )
  }
  const versions = new Int32Array(end - start)
  for (const { from, to, weight_version: version, newest_weight_version: newest } of inside) {
    if (version == null || newest != null) {
      throw new TrainDataError(`Session ${sessionId} has tokens whose weight version is not certain.`)
    }
    versions.fill(Number(version), from - start, to - start)
  }
  return versions
}
