import * as fc from 'fast-check'
import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { runSession, type SessionEnd, type SessionSteps } from './run-session.ts'
import { Stages } from './stages.ts'
import type { Transition } from './session-states.ts'

const WIDTHS = { init: 1, ready: 1, run: 1, backlog: 1, postrun: 1 }
const LIMITS = { initMs: 1e9, agentMs: 1e9, evaluateMs: 1e9, sessionMs: 1e9 }

interface Step {
  ms: number
  /** Milliseconds by which the wall clock is changed during the step. */
  jump: number
}

const step = fc.record({ ms: fc.nat(10_000), jump: fc.integer({ min: -1e9, max: 1e9 }) })

test('timing does not depend on changes of the wall clock', async () => {
  await fc.assert(
    fc.asyncProperty(step, step, step, step, async (prepare, run, build, grade) => {
      const clock = new FakeClock(2e9)
      const take = async ({ ms, jump }: Step): Promise<void> => {
        clock.jump(jump)
        await clock.sleep(ms)
      }
      const steps: SessionSteps<string, SessionEnd<string>> = {
        prepare: async () => {},
        startSandbox: () => take(prepare),
        run: async () => {
          await take(run)
          return { exitCode: 0, isOutOfMemory: false, end: 'finished' }
        },
        seal: async () => {},
        build: async () => {
          await take(build)
          return { built: 'built', answers: 1 }
        },
        grade: async () => {
          await take(grade)
          return { outcome_reward: 1, metadata: {} }
        },
        gradingPhase: () => 'grade',
        control: async () => {},
        refuse: async () => ({ outcome_reward: 0, metadata: {} }),
        tearDown: async () => {},
        report: async (end) => end,
      }
      const notes: Transition[] = []
      const deps = {
        stages: new Stages(WIDTHS),
        clock,
        onTransition: async (transition: Transition) => void notes.push(transition),
        onError: (error: unknown) => expect.unreachable(String(error)),
      }
      const order = { priority: 0, limits: LIMITS }
      const end = await clock.run(runSession(order, steps, deps, new AbortController().signal))
      expect(end).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
      expect(end.timing).toEqual({
        register_to_init_queue_ms: 0,
        init_ms: prepare.ms,
        ready_queue_ms: 0,
        run_ms: run.ms,
        postrun_ms: build.ms + grade.ms,
      })
      // Transitions have the time of the wall clock.
      expect(notes.at(-1)?.at).toBe(clock.now())
    }),
    { numRuns: 50 },
  )
})
