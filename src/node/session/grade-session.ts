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

/** The part of a built session that evaluators read; see `Evaluation`. */
export interface GradedSession {
  session: SessionRecord
  summary: Pick<BuildSummary, 'rows'>
  conversation(): readonly ChatMessage[]
  transcript(): readonly TranscriptEntry[]
}

export interface GradingOptions {
  evaluator: Evaluator
  /** No process of the agent may run in it. Grading stops the sandbox. */
  agent: Sandbox
  /** The name of the snapshot of the agent's sandbox, if one is made. */
  snapshot: string
  graders: Pick<Graders, 'acquire'>
  built: GradedSession
  ending: AgentEnding
  task: TaskRequest
  /** A folder that no sandbox can access. */
  submission: string
  /** Throws for a file of this machine that must not be copied into a sandbox. */
  assertUpload(source: string): Promise<void>
  artifacts: Pick<Artifacts, 'write'>
  /** Free space on the disk with the sandboxes and the submission. */
  freeBytes(): Promise<number>
}

/** With less free space the disk counts as full without the agent's files. */
const FREE_BYTES = 1024 ** 3

/**
 * Grades one session. Copies the submission out of the agent's sandbox, stops that sandbox, and grades in other sandboxes.
 * So only the submission can affect the grade, and the agent cannot change it any more.
 */
export class SessionGrading {
  readonly #options: GradingOptions
  #phase: FailurePhase = 'collect'
  /** Number of clean sandboxes that are starting. */
  #starting = 0
  #attempts = 0
  /** Undefined until the submission is complete and the agent's sandbox is stopped. */
  #collection: Omit<Collection, 'signal'> | undefined

  constructor(options: GradingOptions) {
    this.#options = options
  }

  /** The phase of the current grading, or in which the last grading failed. */
  get phase(): FailurePhase {
    return this.#starting > 0 ? 'start-grader' : this.#phase
  }

  /** May be called again after a failure: a complete submission is not copied again. */
  async grade(signal: AbortSignal): Promise<EvalResult> {
    const { built, ending } = this.#options
    this.#starting = 0
    if (this.#collection === undefined) {
      this.#phase = 'collect'
      const collection = await this.#collect(signal)
      if ('failure' in collection) return refuseGrade(collection.failure, { ...this.#options, phase: this.phase })
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
      (from) => this.#acquire(from, signal),
      signal,
    )
  }

  /** Copies the submission. Returns a failure if the agent caused that it cannot be copied. */
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
   * Grades a sandbox that the agent never entered, with an empty conversation. The agent cannot cause a failure here. The
   * session id and the evidence files are marked as those of a control. `code`: the failure that the control is for.
   */
  async control({ code }: Pick<Failure, 'code'>, signal: AbortSignal): Promise<void> {
    const { evaluator, graders, built, ending } = this.#options
    if (code === 'runtime.out-of-disk') await this.#assertFreeDisk()
    const collection = await this.#open('control', 'control.')
    if (evaluator.collect !== undefined) {
      const untouched = await graders.acquire('untouched', signal)
      try {
        await evaluator.collect(this.#guard(untouched, signal), { ...collection, signal })
      } catch (error) {
        // Missing files are a verdict, not a failure, for an agent and for a control.
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
      async () => this.#guard(await graders.acquire('clean', signal), signal),
      signal,
    )
  }

  /** Removes the agent's files. Throws if the disk of this machine is still full. */
  async #assertFreeDisk(): Promise<void> {
    await this.#options.agent.stop()
    const free = await this.#options.freeBytes()
    if (free >= FREE_BYTES) return
    throw new RolloutError('runtime.out-of-disk', `The disk of this machine is full: ${free} bytes are free`)
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
    acquire: (from: 'clean' | 'agent') => Promise<Workspace>,
    signal: AbortSignal,
  ): Promise<EvalResult> {
    const { evaluator, built } = this.#options
    const { rows } = built.summary
    try {
      const value = await evaluator.evaluate({
        ...subject,
        signal,
        samples: rows,
        grader: (from = 'clean') => acquire(from),
      })
      const parsed = EvalResult.safeParse(value)
      if (!parsed.success)
        throw new TypeError(`The evaluator returned no valid result: ${describeIssues(parsed.error)}`)
      const { trace_rewards: traces } = parsed.data
      if (traces != null && traces.length !== rows) {
        throw new TypeError(`The evaluator returned ${traces.length} rewards for ${rows} samples`)
      }
      assertInRange(parsed.data, evaluator.rewards ?? USUAL_RANGE, 'The evaluator')
      return parsed.data
    } catch (error) {
      signal.throwIfAborted()
      throw toEvaluatorError(error)
    }
  }

  /** Only the start of a clean sandbox counts as `start-grader`: an agent state may itself cause a failed start. */
  async #acquire(from: 'clean' | 'agent', signal: AbortSignal): Promise<Workspace> {
    const { graders } = this.#options
    if (from === 'agent') return this.#guard(await graders.acquire(from, signal), signal)
    this.#starting += 1
    const sandbox = await graders.acquire(from, signal)
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

/** Returns the lowest reward of an evaluator, and stores `failure`, which the agent caused, as evidence. */
export async function refuseGrade(
  { code, message }: Failure,
  { evaluator, artifacts, phase }: Pick<GradingOptions, 'evaluator' | 'artifacts'> & { phase: FailurePhase },
): Promise<EvalResult> {
  const metadata = { failure: code, message, phase }
  await artifacts.write('evaluator/attribution.json', JSON.stringify({ blame: 'policy', ...metadata }, undefined, 2))
  return { outcome_reward: (evaluator.rewards ?? USUAL_RANGE)[0], metadata }
}

/** Keeps the code of our errors. A missing or oversized file in a grader's sandbox is a failure of the evaluator. */
function toEvaluatorError(error: unknown): RolloutError {
  if (error instanceof RolloutError && failureClasses[error.code].blame !== 'policy') return error
  const isDiskFull = ['ENOSPC', 'EDQUOT'].includes(errnoOf(error) ?? '')
  return new RolloutError(isDiskFull ? 'runtime.out-of-disk' : 'evaluator.crashed', describeError(error), {
    cause: error,
  })
}
