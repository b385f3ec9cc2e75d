import type { ChatMessage } from '../../model/chat-message.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { AgentEnding } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { TranscriptEntry } from '../../model/transcript.ts'
import type { Workspace } from '../../model/workspace.ts'
import type { RewardRange } from '../grading/reward-range.ts'

/**
 * Says what a session was worth. Runs after the agent is dead and its key revoked, in two steps between which the agent's
 * sandbox is destroyed: `collect` takes out of it what the grade depends on, `evaluate` grades without it. Knows no
 * runtime, node or server. Returns the lowest reward for what it knows to be the agent's doing. For an error that it
 * throws, the node runs it again on a sandbox that the agent never entered: an error there means no reward, and a result
 * there means that the agent caused the error, which is worth the lowest reward.
 */
export interface Evaluator {
  /** What the node must have ready for it. */
  readonly needs: EvaluatorNeeds
  /** The lowest and the highest reward that it gives. Absent: 0 and 1. */
  readonly rewards?: RewardRange
  /**
   * Throws `config.invalid` for what the operator has to provide and did not. Called before the agent starts. A path of this
   * machine is passed to `assertUpload` before it is looked at: a task must not find out which files exist.
   */
  check?(assertUpload: (source: string) => Promise<void>): Promise<void>
  /**
   * Takes out of the agent's sandbox, in which nothing of the agent runs any more, what the grade depends on, and puts it
   * in `submission`. Absent: nothing is needed. A RolloutError whose blame is `policy` ends the grading with the lowest reward.
   */
  collect?(agent: Workspace, evaluation: Collection): Promise<void>
  evaluate(evaluation: Evaluation): Promise<EvalResult>
}

export interface EvaluatorNeeds {
  /** Whether `grader` will be called, so that a sandbox is worth preparing while the agent still runs. */
  sandbox: boolean
  /** Whether a grader's sandbox must begin as a copy of all that the agent left, not just of what was collected. */
  agentState: boolean
  /** Whether `conversation` or `transcript` will be called. Absent: yes. They are loaded only then, and can be large. */
  messages?: boolean
}

/** What is told of a session to whoever grades it. */
export interface Collection {
  sessionId: string
  task: { id: string; instruction: string; metadata: Readonly<Record<string, unknown>> }
  /** A folder of this machine that is the session's alone; no sandbox sees it. */
  submission: string
  evidence: Evidence
  /** From the task, for the commands that grade. */
  env: Readonly<Record<string, string>>
  /** Ends with the evaluation's budget. */
  signal: AbortSignal
}

export interface Evaluation extends Collection {
  ending: AgentEnding
  /** Without its turns, unless the evaluator is a module of the user's: a record may be large. */
  session: SessionRecord
  /** What was said in the main conversation up to its end, tool results included; empty when nothing was. */
  conversation(): readonly ChatMessage[]
  /** The same messages with their source, and the answers of the model that the last prompt leaves out. */
  transcript(): readonly TranscriptEntry[]
  /** How many samples were built, in whose order `trace_rewards` come. */
  samples: number
  /**
   * A new sandbox that shares nothing with the agent's and was prepared as the task says. Each call gives another. It is
   * removed afterwards by whoever gave it. `agent`: begins with all that the agent left; only with `needs.agentState`.
   */
  grader(from?: 'clean' | 'agent'): Promise<Workspace>
}

/** Keeps what shows how a grade came about, with the session, within the limits for artifacts. */
export interface Evidence {
  /** `name` is a file name: letters, digits, dots, dashes, underscores. */
  write(name: string, data: string | Uint8Array): Promise<void>
}

export interface EvaluatorDeps {
  now(): number
  /** The value of a secret by its name, from the operator's side; undefined when there is none. */
  secret(name: string): string | undefined
  /** Whether a URL of a task may be called: one that only the operator can reach must not be. */
  mayCall(url: URL): boolean
  /** Whether a host of such a URL may be connected to at this address, found when it is called. Absent: it may. */
  mayConnect?: (address: string, port: number) => boolean
}
