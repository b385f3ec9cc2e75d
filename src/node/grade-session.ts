import type { ChatMessage } from '../model/chat-message.ts'
import { failureClasses, RolloutError } from '../model/failure.ts'
import { EvalResult } from '../model/reward.ts'
import type { AgentEnding } from '../model/session-outcome.ts'
import type { SessionRecord } from '../model/session.ts'
import type { TaskRequest } from '../model/task.ts'
import type { Workspace } from '../model/workspace.ts'
import type { BuildSummary } from '../trajectory/build-session.ts'
import type { Collection, Evaluation, Evaluator } from '../trajectory/evaluators/evaluator.ts'
import type { Artifacts } from './artifacts.ts'
import type { Graders } from './graders.ts'
import type { Sandbox } from './runtimes/runtime.ts'
import { toWorkspace } from './sandbox-workspace.ts'
import { identityVariables } from './session-environment.ts'

/** What evaluators are shown of a built session; see `Evaluation`. */
export interface GradedSession {
  session: SessionRecord
  summary: Pick<BuildSummary, 'rows'>
  conversation(): readonly ChatMessage[]
}

export interface Grading {
  evaluator: Evaluator
  /** In which nothing of the agent runs any more. Gone afterwards. */
  agent: Sandbox
  /** What all that the agent left is called, if it is kept. */
  snapshot: string
  graders: Graders
  built: GradedSession
  ending: AgentEnding
  task: TaskRequest
  submission: string
  /** Throws for a file of this machine that must not get into a sandbox. */
  assertUpload(source: string): Promise<void>
  artifacts: Artifacts
  signal: AbortSignal
}

/**
 * Takes what counts out of the agent's sandbox, destroys that, and grades in others. So nothing the agent left behind can
 * have a say in its grade but what was taken, and that lies where it cannot reach.
 */
export async function gradeSession(grading: Grading): Promise<EvalResult> {
  const { evaluator, agent, task, built, signal } = grading
  const collection: Collection = {
    sessionId: built.session.id,
    task: { id: task.task_id, instruction: task.instruction, metadata: task.metadata },
    submission: grading.submission,
    evidence: { write: (name, data) => grading.artifacts.write(`evaluator/${name}`, data) },
    env: { ...identityVariables({ sessionId: built.session.id, task }), ...task.evaluator?.env },
    signal,
  }
  const refused = await collect(grading, collection)
  if (refused !== undefined) return refused
  if (evaluator.needs.agentState) {
    await agent.freeze()
    await agent.snapshot(grading.snapshot)
  }
  await agent.stop()
  signal.throwIfAborted()
  return evaluate(grading, {
    ...collection,
    ending: grading.ending,
    session: built.session,
    conversation: () => built.conversation(),
    samples: built.summary.rows,
    grader: (from = 'clean') => toGrader(grading, from),
  })
}

/** A grade, if what the agent left cannot even be looked at: that is its own doing, and worth nothing. */
async function collect(grading: Grading, collection: Collection): Promise<EvalResult | undefined> {
  const { evaluator, agent, signal } = grading
  try {
    await evaluator.collect?.(toGuarded(grading, agent), collection)
    return undefined
  } catch (error) {
    signal.throwIfAborted()
    if (!(error instanceof RolloutError) || error.blame !== 'policy') throw toEvaluatorError(error)
    return { outcome_reward: 0, metadata: { failure: error.code, message: error.message } }
  }
}

async function evaluate({ evaluator, built, signal }: Grading, evaluation: Evaluation): Promise<EvalResult> {
  try {
    const result = EvalResult.parse(await evaluator.evaluate(evaluation))
    const { rows } = built.summary
    if (result.trace_rewards != null && result.trace_rewards.length !== rows) {
      throw new TypeError(`It gave ${result.trace_rewards.length} rewards for ${rows} samples`)
    }
    return result
  } catch (error) {
    signal.throwIfAborted()
    throw toEvaluatorError(error)
  }
}

async function toGrader(grading: Grading, from: 'clean' | 'agent'): Promise<Workspace> {
  return toGuarded(grading, await grading.graders.take(from, grading.signal))
}

function toGuarded(grading: Grading, sandbox: Sandbox): Workspace {
  const workspace = toWorkspace(sandbox, grading.signal)
  return {
    ...workspace,
    upload: async (source, target) => {
      await grading.assertUpload(source)
      await workspace.upload(source, target)
    },
  }
}

/** Whatever goes wrong while grading is not the policy's doing: that is for the evaluator to say, with a reward. */
function toEvaluatorError(error: unknown): RolloutError {
  if (error instanceof RolloutError && failureClasses[error.code].blame === 'infrastructure') return error
  const message = error instanceof Error ? error.message : String(error)
  return new RolloutError('evaluator.crashed', message, { cause: error })
}
