import type { KindSchema, Plug } from '../../lib/plug.ts'
import type { ChatMessage } from '../../model/chat-message.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { AgentEnding } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { TranscriptEntry } from '../../model/transcript.ts'
import type { Workspace } from '../../model/workspace.ts'
import type { RewardRange } from '../grading/reward-range.ts'

/**
 * Grades a session. Runs after the harness has ended and its key is revoked, in two steps: `collect` copies the graded files
 * out of the agent's sandbox, then the sandbox is destroyed, then `evaluate` grades the copy. An evaluator imports no
 * runtime, node or server. It returns the lowest reward for a failure that the agent certainly caused. When it throws, the
 * node repeats the evaluation on a sandbox that the agent never entered: a second error means no reward; a result means that
 * the agent caused the error, which gives the lowest reward.
 */
export interface Evaluator {
  readonly needs: EvaluatorNeeds
  /** Lowest and highest reward. Absent: 0 and 1. */
  readonly rewards?: RewardRange
  /**
   * Throws `config.invalid` when a file, secret or setting of the operator is missing. Called before the harness starts.
   * Calls `assertUpload` with a path of this machine before it reads the path: a task must not learn which files exist.
   */
  check?(assertUpload: (source: string) => Promise<void>): Promise<void>
  /**
   * Copies the files that the grade depends on from the agent's sandbox, in which no process of the agent runs any more, to
   * `submission`. Absent: no files are needed. A RolloutError whose blame is `policy` ends the grading with the lowest reward.
   */
  collect?(agent: Workspace, evaluation: Collection): Promise<void>
  evaluate(evaluation: Evaluation): Promise<EvalResult>
}

export interface EvaluatorNeeds {
  /** Whether `grader` will be called. If so, the node prepares a sandbox while the harness still runs. */
  sandbox: boolean
  /** Whether a grading sandbox must start from the agent's final file system. */
  agentState: boolean
  /**
   * Whether `conversation` or `transcript` will be called. Absent: yes. The messages, which can be large, are loaded
   * only then.
   */
  messages?: boolean
}

/** The facts about a session that `collect` and `evaluate` receive. */
export interface Collection {
  sessionId: string
  task: { id: string; instruction: string; metadata: Readonly<Record<string, unknown>> }
  /** Folder on this machine for this session only; not visible in any sandbox. */
  submission: string
  evidence: Evidence
  /** Environment of the grading commands, from the task. */
  env: Readonly<Record<string, string>>
  /** Fires when the evaluation's time limit is over. */
  signal: AbortSignal
}

export interface Evaluation extends Collection {
  ending: AgentEnding
  /** Includes the turns, which can be large, only for evaluators loaded from a module. */
  session: SessionRecord
  /** Returns the messages of the main conversation up to its end, tool results included. */
  conversation(): readonly ChatMessage[]
  /** Returns the same messages with their source, and the model's answers that the last prompt does not contain. */
  transcript(): readonly TranscriptEntry[]
  /** Number of samples. `trace_rewards` has their order. */
  samples: number
  /**
   * Starts a new sandbox, prepared as the task says and separate from the agent's. The node removes it after the evaluation.
   * `agent`: the sandbox starts from the agent's final file system; requires `needs.agentState`.
   */
  grader(from?: 'clean' | 'agent'): Promise<Workspace>
}

/** Stores files that explain a grade with the session, within the limits for artifacts. */
export interface Evidence {
  /** `name` is a file name: letters, digits, dots, dashes, underscores. */
  write(name: string, data: string | Uint8Array): Promise<void>
}

export interface EvaluatorDeps {
  now(): number
  /** Returns a secret of the operator by its name; undefined if it is not set. */
  secret(name: string): string | undefined
  /** Whether a URL of a task may be called. URLs that only the operator can reach may not. */
  mayCall(url: URL): boolean
  /** Whether a connection to the resolved address of such a URL is allowed. Absent: allowed. */
  mayConnect?: (address: string, port: number) => boolean
}

/** The type of an evaluator in the registry and in a module. */
export type EvaluatorPlug = Plug<KindSchema, EvaluatorDeps, Evaluator>
