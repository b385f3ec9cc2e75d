import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { describeError, errnoOf } from '../../lib/fs/errno.ts'
import type { FailurePhase } from '../../model/attribution.ts'
import type { ChatMessage } from '../../model/chat-message.ts'
import { failureClasses, RolloutError, type Failure } from '../../model/failure.ts'
import { EvalResult } from '../../model/reward.ts'
import type { AgentEnding } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { TranscriptEntry } from '../../model/transcript.ts'
import type { Workspace } from '../../model/workspace.ts'
import type { BuildSummary } from '../../trajectory/build-session.ts'
import type { Collection, Evaluation, Evaluator } from '../../trajectory/evaluators/evaluator.ts'
import { describeIssues } from '../../trajectory/grading/describe-issues.ts'
import { assertInRange, USUAL_RANGE } from '../../trajectory/grading/reward-range.ts'
import type { Artifacts } from './artifacts.ts'
import type { Graders } from './graders.ts'
import type { Sandbox } from '../sandbox/runtimes/runtime.ts'
import { toWorkspace } from '../sandbox/prepare/sandbox-workspace.ts'
import { identityVariables } from './session-environment.ts'

/** What evaluators are shown of a built session; see `Evaluation`. */
export interface GradedSession {
  session: SessionRecord
  summary: Pick<BuildSummary, 'rows'>
  conversation(): readonly ChatMessage[]
  transcript(): readonly TranscriptEntry[]
}

export interface GradingOptions {
  evaluator: Evaluator
  /** In which nothing of the agent runs any more. Gone afterwards. */
  agent: Sandbox
  /** What all that the agent left is called, if it is kept. */
  snapshot: string
  graders: Pick<Graders, 'take'>
  built: GradedSession
  ending: AgentEnding
  task: TaskRequest
  /** A folder that no sandbox sees. */
  submission: string
  /** Throws for a file of this machine that must not get into a sandbox. */
  assertUpload(source: string): Promise<void>
  artifacts: Pick<Artifacts, 'write'>
  /** Of the disk with the sandboxes and the submission. */
  freeBytes(): Promise<number>
}

/** With less free space the disk of this machine is full, whatever an agent wrote. */
const FREE_BYTES = 1024 ** 3

/**
 * The grading of one session. Takes what counts out of the agent's sandbox, destroys the sandbox, and grades in others. So
 * nothing the agent left behind can have a say in its grade but what was taken, and that lies where it cannot reach.
 */
export class SessionGrading {
  readonly #options: GradingOptions
  #phase: FailurePhase = 'collect'
  /** Sandboxes without files of the agent that were asked for and are not there. */
  #starting = 0
  #attempts = 0
  /** Of what was taken; undefined until all of it is, and the agent's sandbox is gone. */
  #collection: Omit<Collection, 'signal'> | undefined

  constructor(options: GradingOptions) {
    this.#options = options
  }

  /** Where the last grading is, or failed. */
  get phase(): FailurePhase {
    return this.#starting > 0 ? 'start-grader' : this.#phase
  }

  /** May be called again after a failure: what was taken before is not taken again. */
  async grade(signal: AbortSignal): Promise<EvalResult> {
    const { built, ending } = this.#options
    this.#starting = 0
    if (this.#collection === undefined) {
      this.#phase = 'collect'
      const collection = await this.#collect(signal)
      if ('failure' in collection) return this.refuse(collection.failure)
      this.#collection = collection
    }
    this.#phase = 'grade'
    return this.#evaluate(
      {
        ...this.#collection,
        ending,
        session: built.session,
        conversation: () => built.conversation(),
        transcript: () => built.transcript(),
      },
      (from) => this.#take(from, signal),
      signal,
    )
  }

  /** What is to be graded, or why the agent's files cannot even be looked at, which is the agent's doing. */
  async #collect(signal: AbortSignal): Promise<Omit<Collection, 'signal'> | { failure: Failure }> {
    const { evaluator, agent, snapshot } = this.#options
    const collection = await this.#open(`attempt-${++this.#attempts}`, '')
    try {
      await evaluator.collect?.(this.#guard(agent, signal), { ...collection, signal })
      if (evaluator.needs.agentState) {
        await agent.freeze()
        await agent.snapshot(snapshot)
      }
      await agent.stop()
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof RolloutError && error.blame === 'policy') return { failure: error.failure }
      throw toEvaluatorError(error)
    }
    signal.throwIfAborted()
    return collection
  }

  /**
   * Grades a sandbox that the agent never entered, in the place of the agent's, without calls of the model. A failure here
   * cannot be the agent's doing. The session's id and its evidence are marked. `failure`: what the control is for.
   */
  async control({ code }: Pick<Failure, 'code'>, signal: AbortSignal): Promise<void> {
    const { evaluator, graders, built, ending } = this.#options
    if (code === 'runtime.out-of-disk') await this.#assertFreeDisk()
    const collection = await this.#open('control', 'control.')
    if (evaluator.collect !== undefined) {
      const untouched = await graders.take('untouched', signal)
      try {
        await evaluator.collect(this.#guard(untouched, signal), { ...collection, signal })
      } catch (error) {
        // That files are missing before an agent has made them is a verdict, as it is for an agent.
        if (error instanceof RolloutError && error.blame === 'policy') return
        throw error
      } finally {
        await untouched.stop()
      }
    }
    await this.#evaluate(
      {
        ...collection,
        ending,
        session: { ...built.session, turns: [] },
        conversation: () => [],
        transcript: () => [],
      },
      async () => this.#guard(await graders.take('clean', signal), signal),
      signal,
    )
  }

  /** Throws when the disk of this machine is full without the agent's files, which are removed for that. */
  async #assertFreeDisk(): Promise<void> {
    await this.#options.agent.stop()
    const free = await this.#options.freeBytes()
    if (free >= FREE_BYTES) return
    throw new RolloutError('runtime.out-of-disk', `The disk of this machine is full: ${free} bytes are free`)
  }

  /** The lowest reward, for a failure that is the agent's doing. */
  async refuse(failure: Failure): Promise<EvalResult> {
    return refuseGrade(failure, { ...this.#options, phase: this.phase })
  }

  async #open(folder: string, prefix: string): Promise<Omit<Collection, 'signal'>> {
    const { built, task, artifacts } = this.#options
    const submission = join(this.#options.submission, folder)
    await mkdir(submission, { recursive: true, mode: 0o700 })
    const { id } = built.session
    return {
      sessionId: prefix === '' ? id : `${id}-control`,
      task: { id: task.task_id, instruction: task.instruction, metadata: task.metadata },
      submission,
      evidence: { write: (name, data) => artifacts.write(`evaluator/${prefix}${name}`, data) },
      env: { ...identityVariables({ sessionId: id, task }), ...task.evaluator?.env },
    }
  }

  async #evaluate(
    subject: Omit<Evaluation, 'signal' | 'grader' | 'samples'>,
    take: (from: 'clean' | 'agent') => Promise<Workspace>,
    signal: AbortSignal,
  ): Promise<EvalResult> {
    const { evaluator, built } = this.#options
    const { rows } = built.summary
    try {
      const given = await evaluator.evaluate({
        ...subject,
        signal,
        samples: rows,
        grader: (from = 'clean') => take(from),
      })
      const parsed = EvalResult.safeParse(given)
      if (!parsed.success) throw new TypeError(`The evaluator gave no result: ${describeIssues(parsed.error)}`)
      const { trace_rewards: traces } = parsed.data
      if (traces != null && traces.length !== rows) {
        throw new TypeError(`The evaluator gave ${traces.length} rewards for ${rows} samples`)
      }
      assertInRange(parsed.data, evaluator.rewards ?? USUAL_RANGE, 'The evaluator')
      return parsed.data
    } catch (error) {
      signal.throwIfAborted()
      throw toEvaluatorError(error)
    }
  }

  /** A sandbox from all that the agent left may fail to start because of that; one without it may not. */
  async #take(from: 'clean' | 'agent', signal: AbortSignal): Promise<Workspace> {
    const { graders } = this.#options
    if (from === 'agent') return this.#guard(await graders.take(from, signal), signal)
    this.#starting += 1
    const sandbox = await graders.take(from, signal)
    this.#starting -= 1
    return this.#guard(sandbox, signal)
  }

  #guard(sandbox: Sandbox, signal: AbortSignal): Workspace {
    const workspace = toWorkspace(sandbox, signal)
    return {
      ...workspace,
      upload: async (source, target) => {
        await this.#options.assertUpload(source)
        await workspace.upload(source, target)
      },
    }
  }
}

/** The lowest reward that an evaluator gives. `failure`, which is the agent's doing, is kept as evidence. */
export async function refuseGrade(
  { code, message }: Failure,
  { evaluator, artifacts, phase }: Pick<GradingOptions, 'evaluator' | 'artifacts'> & { phase: FailurePhase },
): Promise<EvalResult> {
  const metadata = { failure: code, message, phase }
  await artifacts.write('evaluator/attribution.json', JSON.stringify({ blame: 'policy', ...metadata }, undefined, 2))
  return { outcome_reward: (evaluator.rewards ?? USUAL_RANGE)[0], metadata }
}

/** Errors of ours keep their code; a grader's sandbox that lacks a file or holds too many is the evaluator's failure. */
function toEvaluatorError(error: unknown): RolloutError {
  if (error instanceof RolloutError && failureClasses[error.code].blame !== 'policy') return error
  const isDiskFull = ['ENOSPC', 'EDQUOT'].includes(errnoOf(error) ?? '')
  return new RolloutError(isDiskFull ? 'runtime.out-of-disk' : 'evaluator.crashed', describeError(error), {
    cause: error,
  })
}
