import type { Clock } from '../../../src/lib/async/clock.ts'
import { RolloutError } from '../../../src/model/failure.ts'
import type { EvalResult } from '../../../src/model/reward.ts'
import type { AgentRun, BuildOutcome } from '../../../src/node/session/attribute-ending.ts'
import type { SessionEnd, SessionSteps } from '../../../src/node/session/run-session.ts'
import type { Fate } from '../workload.ts'

/** Session steps that only take virtual time. */
export function createWork(fate: Fate, clock: Pick<Clock, 'after'>): SessionSteps<null, SessionEnd<null>> {
  const { failure } = fate
  return {
    prepare: () => Promise.resolve(),
    async startSandbox(signal) {
      const isSpoilt = failure?.stage === 'init'
      await pause(clock, isSpoilt ? fate.initMs * failure.after : fate.initMs, signal)
      if (isSpoilt) throw new RolloutError('runtime.start-failed', 'The sandbox did not start.')
    },
    async run(signal): Promise<AgentRun> {
      const isSpoilt = failure?.stage === 'run'
      await pause(clock, isSpoilt ? fate.runMs * failure.after : fate.runMs, signal)
      if (isSpoilt && !signal.aborted) throw new RolloutError('runtime.gone', 'The sandbox vanished.')
      return { exitCode: signal.aborted ? null : 0, isOutOfMemory: false, end: 'finished' }
    },
    seal: () => Promise.resolve(),
    build: (): Promise<BuildOutcome<null>> => Promise.resolve({ built: null, answers: 1 }),
    async grade(_built, _ending, signal): Promise<EvalResult> {
      await pause(clock, fate.postrunMs, signal)
      return { outcome_reward: fate.reward, metadata: {} }
    },
    gradingPhase: () => 'grade',
    control: () => Promise.reject(new RolloutError('evaluator.crashed', 'The simulated evaluator has no control.')),
    refuse: () => Promise.resolve({ outcome_reward: 0, metadata: {} }),
    tearDown: () => Promise.resolve(),
    report: (end) => Promise.resolve(end),
  }
}

/** Resolves early when the signal is aborted. */
function pause(clock: Pick<Clock, 'after'>, ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const stop = clock.after(ms, () => {
      signal.removeEventListener('abort', end)
      resolve()
    })
    const end = (): void => {
      stop()
      resolve()
    }
    signal.addEventListener('abort', end, { once: true })
  })
}
