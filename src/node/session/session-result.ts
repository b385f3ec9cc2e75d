import { randomUUID } from 'node:crypto'
import { open, rename, rm } from 'node:fs/promises'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createZstdCompress } from 'node:zlib'
import type { EvalResult } from '../../model/reward.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { type SessionResult, toNvidiaStatus, toNvidiaTiming } from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Trace, Trajectory } from '../../model/trajectory.ts'
import type { BuiltSession } from '../../trajectory/build-session.ts'
import { scoreSession } from '../../trajectory/score-session.ts'
import { toTrace } from '../../trajectory/to-trace.ts'

export interface ResultParts {
  order: SessionOrder
  outcome: SessionOutcome
  /** Absent if there were no calls to build from. */
  built?: BuiltSession | undefined
}

/**
 * Writes the result for the trainer: one JSON text, compressed with zstd. The file is atomic and durable when this
 * resolves. Traces are rendered one at a time, so that the memory use does not grow with the session.
 */
export async function writeResult(path: string, parts: ResultParts): Promise<void> {
  const draft = `${path}.${randomUUID()}`
  const file = await open(draft, 'wx', 0o600)
  try {
    await pipeline(Readable.from(renderResult(parts)), createZstdCompress(), async (pieces: AsyncIterable<Buffer>) => {
      for await (const piece of pieces) await file.writeFile(piece)
    })
    await file.datasync()
  } catch (error) {
    await rm(draft, { force: true }).catch(() => {})
    throw error
  } finally {
    await file.close()
  }
  await rename(draft, path)
}

/** Yields the JSON of one `SessionResult` in pieces. */
export function* renderResult(parts: ResultParts): Generator<string> {
  const { trajectory, ...rest } = toHead(parts)
  const [head, tail] = split(JSON.stringify(trajectory), '"traces":[')
  yield `${JSON.stringify(rest).slice(0, -1)},"trajectory":${head}`
  let separator = ''
  for (const trace of tracesOf(parts)) {
    yield separator + JSON.stringify(trace)
    separator = ','
  }
  yield `${tail}}`
}

/** Splits after the first occurrence of `mark`: our own keys come before values of users. */
function split(text: string, mark: string): [string, string] {
  const at = text.indexOf(mark) + mark.length
  return [text.slice(0, at), text.slice(at)]
}

function* tracesOf({ order, outcome, built }: ResultParts): Generator<Trace> {
  if (built === undefined) return
  const { metadata } = order.task
  const score = { metadata: {}, ...outcome.grade, session_id: order.sessionId, group_id: groupOf(order.task) }
  const more = {
    // Unchanged, as the trainer wrote it: a number stays a number.
    ...('group_id' in metadata && { group_id: metadata['group_id'] }),
    ...(isAgentTimeout(outcome) && { training_filter: AGENT_TIMEOUT_FILTER }),
  }
  for (const sample of scoreSession(built, score).samples()) {
    const trace = toTrace(sample)
    yield { ...trace, metadata: { ...trace.metadata, ...more } }
  }
}

/** The result without its traces. */
function toHead({ order, outcome, built }: ResultParts): SessionResult {
  const { task, sessionId, attempt } = order
  const { status, failure, ending, grade, counts, warnings, artifacts, timing, nodeId } = outcome
  return {
    session_id: sessionId,
    task_id: task.task_id,
    status: toNvidiaStatus(status),
    polar_status: status,
    timing: toNvidiaTiming(timing),
    polar_timing: timing,
    node_id: nodeId,
    error: failure?.message ?? null,
    failure: failure ?? null,
    // The trainer's own metadata, plus one key for ours.
    metadata: {
      ...task.metadata,
      polar: {
        attempt,
        ending: ending && { kind: ending.kind, exit_code: ending.exitCode },
        evaluation: grade,
        counts,
        warnings,
        artifacts: artifacts.map(({ path, bytes, isCut }) => ({ path, bytes, is_cut: isCut })),
      },
    },
    trajectory: {
      status: toTrajectoryStatus(status),
      traces: [],
      error: failure?.message ?? null,
      metadata: {
        builder: task.builder.strategy,
        session_id: sessionId,
        task_id: task.task_id,
        record_count: built?.session.turns.length ?? 0,
        trace_count: built?.summary.rows ?? 0,
        is_complete: built?.session.complete ?? false,
        task_metadata: task.metadata,
        ...lifted(task.metadata),
        ...modelFacts(built),
        ...agentFacts(outcome),
        evaluation: grade && toEvaluation(task, grade),
      },
    },
  }
}

function toTrajectoryStatus(status: SessionOutcome['status']): Trajectory['status'] {
  return status === 'COMPLETED' || status === 'TIMEOUT' ? status : 'ERROR'
}

/** The samples of a task are one group, unless the trainer's metadata puts several tasks into one group. */
function groupOf({ task_id, metadata }: TaskRequest): string {
  const { group_id: given } = metadata
  return typeof given === 'string' || typeof given === 'number' ? String(given) : task_id
}

const LIFTED = ['group_id', 'policy_version', 'rollout_step'] as const

/** Metadata that NVIDIA Polar's builders repeat in the trajectory, where its clients read it. */
function lifted(metadata: TaskRequest['metadata']): Record<string, unknown> {
  return Object.fromEntries(LIFTED.filter((key) => key in metadata).map((key) => [key, metadata[key]]))
}

/** NVIDIA Polar's names of the wire APIs. */
const API_TYPES: Readonly<Record<string, string>> = {
  'anthropic-messages': 'anthropic',
  'openai-chat': 'openai_chat',
  'openai-responses': 'openai_responses',
  'google-generate': 'google',
}

/** Describes the last call: NVIDIA Polar stores one value per session. */
function modelFacts(built: BuiltSession | undefined): Record<string, unknown> {
  const turn = built?.session.turns.at(-1)
  return {
    model_requested: turn?.model ?? null,
    model_used: turn?.response?.model ?? null,
    api_type: turn === undefined ? null : (API_TYPES[turn.dialect] ?? turn.dialect),
  }
}

/** NVIDIA Polar's trainer uses a timed-out session only if its result has this filter. */
const AGENT_TIMEOUT_FILTER = { reason: 'agent_timeout', trainable: true, masked: false }

function isAgentTimeout({ status, failure }: SessionOutcome): boolean {
  return status === 'TIMEOUT' && failure?.code === 'session.agent-timeout'
}

function agentFacts(outcome: SessionOutcome): Record<string, unknown> {
  const { ending } = outcome
  if (ending === undefined) return {}
  // NVIDIA Polar has no status for an agent that reached its own limit; it reports `completed`.
  const status = ending.kind === 'truncated' ? 'completed' : ending.kind
  return {
    agent_result: {
      status,
      return_code: ending.exitCode,
      ...(isAgentTimeout(outcome) && { timeout_source: 'agent', timeout_stage: 'exec' }),
    },
  }
}

function toEvaluation({ evaluator }: TaskRequest, grade: EvalResult): Record<string, unknown> {
  return {
    ...grade.metadata,
    strategy: evaluator?.strategy ?? null,
    outcome_reward: grade.outcome_reward ?? null,
    trace_rewards: grade.trace_rewards ?? null,
  }
}
