import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import type { FailurePhase } from '../../model/attribution.ts'
import { failureClasses, RolloutError, type Failure, type FailureCode } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import { isTerminal, type SessionStatus } from '../../model/session.ts'
import type { AgentRun, BuildOutcome } from './attribute-ending.ts'
import { runSession, type SessionEnd, type SessionSteps } from './run-session.ts'
import { Stages, type StageWidths } from './stages.ts'
import type { SessionLimits } from './time-limit.ts'
import { runs } from '../../../test/support/runs.ts'

type Step = 'prepare' | 'run' | 'seal' | 'build' | 'grade' | 'control' | 'tearDown'

/** A step takes `ms` and then succeeds or fails. With `isDeaf` it ignores its signal. */
interface Behaviour {
  ms: number
  fails?: FailureCode
  isDeaf?: boolean
}

interface Script {
  prepare: Behaviour
  run: Behaviour & { end: AgentRun['end']; suspicion?: FailureCode }
  /** Number of failures; absent: every call fails. */
  grade: Behaviour & { times?: number; phase?: FailurePhase }
  /** The grading of a sandbox that the agent never entered. */
  control: Behaviour
  build: {
    ms: number
    fails?: FailureCode
    answers?: number
    lastFailure?: FailureCode
    engineControl?: 'passed' | 'failed'
    incomplete?: boolean
  }
  tearDown: Behaviour
  limits: SessionLimits
  priority: number
  cancelAt?: number
}

const HOURS = 3_600_000
const longLimits: SessionLimits = { initMs: HOURS, agentMs: HOURS, evaluateMs: HOURS, sessionMs: 10 * HOURS }
const plain: Script = {
  prepare: { ms: 10 },
  run: { ms: 100, end: 'finished' },
  build: { ms: 1 },
  grade: { ms: 20 },
  control: { ms: 1, fails: 'evaluator.crashed' },
  tearDown: { ms: 5 },
  limits: longLimits,
  priority: 0,
}
const widths: StageWidths = { init: 2, ready: 2, run: 2, postrun: 2, backlog: 2 }

/** Steps that follow a script, and record their calls. */
class ScriptedSteps implements SessionSteps<string, SessionEnd<string>> {
  readonly calls: Step[] = []
  /** Steps that are running. */
  readonly underway = new Set<Step>()
  readonly #clock: FakeClock
  readonly #script: Script
  readonly #before: (step: Step) => void

  constructor(clock: FakeClock, script: Script, before: (step: Step) => void = () => {}) {
    this.#clock = clock
    this.#script = script
    this.#before = before
  }

  async #play(step: Step, behaviour: Behaviour, signal?: AbortSignal): Promise<void> {
    this.calls.push(step)
    this.underway.add(step)
    this.#before(step)
    try {
      await this.#clock.sleep(behaviour.ms, behaviour.isDeaf ? undefined : signal)
      if (behaviour.fails) throw new RolloutError(behaviour.fails, `${step} failed`)
    } finally {
      this.underway.delete(step)
    }
  }

  async prepare(): Promise<void> {}

  startSandbox(signal: AbortSignal): Promise<void> {
    return this.#play('prepare', this.#script.prepare, signal)
  }

  async run(signal: AbortSignal): Promise<AgentRun> {
    const { end } = this.#script.run
    await this.#play('run', this.#script.run, signal)
    const { suspicion } = this.#script.run
    return {
      exitCode: end === 'finished' ? 0 : 1,
      isOutOfMemory: false,
      end,
      ...(suspicion === undefined ? {} : { suspicion: new RolloutError(suspicion, 'suspect').failure }),
    }
  }

  seal(): Promise<void> {
    return this.#play('seal', { ms: 0 })
  }

  async build(): Promise<BuildOutcome<string>> {
    const { ms, fails, answers = 3, lastFailure, engineControl, incomplete } = this.#script.build
    await this.#play('build', { ms, fails })
    return {
      built: 'calls',
      answers,
      ...(lastFailure === undefined ? {} : { lastFailure: new RolloutError(lastFailure, 'last').failure }),
      ...(engineControl === undefined ? {} : { engineControl }),
      ...(incomplete ? { incomplete: new RolloutError('store.unavailable', 'cut').failure } : {}),
    }
  }

  async grade(
    _built: string,
    _ending: unknown,
    signal: AbortSignal,
  ): Promise<{ outcome_reward: number; metadata: {} }> {
    const { times = Infinity, fails, ...grade } = this.#script.grade
    const isFailing = fails !== undefined && this.calls.filter((step) => step === 'grade').length < times
    await this.#play('grade', isFailing ? { ...grade, fails } : grade, signal)
    return { outcome_reward: 1, metadata: {} }
  }

  gradingPhase(): FailurePhase {
    return this.#script.grade.phase ?? 'grade'
  }

  control(_failure: Failure, signal: AbortSignal): Promise<void> {
    return this.#play('control', this.#script.control, signal)
  }

  async refuse({ code }: Failure): Promise<EvalResult> {
    return { outcome_reward: 0, metadata: { failure: code } }
  }

  tearDown(): Promise<void> {
    return this.#play('tearDown', this.#script.tearDown)
  }

  async report(end: SessionEnd<string>): Promise<SessionEnd<string>> {
    return end
  }
}

async function play(script: Partial<Script> = {}): Promise<{
  end: SessionEnd<string>
  calls: Step[]
  states: SessionStatus[]
  problems: unknown[]
  stages: Stages
}> {
  const clock = new FakeClock()
  const whole = { ...plain, ...script }
  const steps = new ScriptedSteps(clock, whole)
  const stages = new Stages(widths)
  const states: SessionStatus[] = []
  const problems: unknown[] = []
  const cancel = new AbortController()
  if (whole.cancelAt !== undefined) clock.after(whole.cancelAt, () => cancel.abort(new Error('by the operator')))
  const onTransition = async ({ to }: { to: SessionStatus }): Promise<void> => void states.push(to)
  const onError = (error: unknown): void => void problems.push(error)
  const end = await clock.run(runSession(whole, steps, { stages, clock, onTransition, onError }, cancel.signal))
  return { end, calls: steps.calls, states, problems, stages }
}

const ALL: Step[] = ['prepare', 'run', 'seal', 'build', 'grade', 'tearDown']

describe('runSession()', () => {
  test('passes every state once, in order, and returns a reward', async () => {
    const { end, calls, states } = await play()
    expect(states).toEqual(['INITIALIZING', 'READY', 'RUNNING', 'POST_RUN', 'BUILDING', 'EVALUATING', 'COMPLETED'])
    expect(calls).toEqual(ALL)
    expect(end).toMatchObject({ status: 'COMPLETED', built: 'calls', grade: { outcome_reward: 1 } })
    expect(end.failure).toBeUndefined()
    expect(end.timing).toEqual({
      register_to_init_queue_ms: 0,
      init_ms: 10,
      ready_queue_ms: 0,
      run_ms: 100,
      postrun_ms: 26,
    })
  })

  test('runs no harness if the sandbox does not start, and tears down', async () => {
    const { end, calls, states } = await play({ prepare: { ms: 5, fails: 'runtime.image-missing' } })
    expect(calls).toEqual(['prepare', 'tearDown'])
    expect(states).toEqual(['INITIALIZING', 'POST_RUN', 'ERROR'])
    expect(end).toMatchObject({ status: 'ERROR', failure: { code: 'runtime.image-missing' } })
    expect(end.grade).toBeUndefined()
  })

  test('ends as TIMEOUT without a reward if the sandbox is not ready in time', async () => {
    const { end, calls } = await play({ prepare: { ms: HOURS }, limits: { ...longLimits, initMs: 1000 } })
    expect(end).toMatchObject({ status: 'TIMEOUT', failure: { code: 'session.init-timeout' } })
    expect(calls).toEqual(['prepare', 'tearDown'])
    expect(end.timing.init_ms).toBe(1000)
  })

  test('builds and grades the captured calls of an agent that exceeded its time limit', async () => {
    const { end, calls } = await play({ run: { ms: HOURS, end: 'finished' }, limits: { ...longLimits, agentMs: 1000 } })
    expect(calls).toEqual(ALL)
    expect(end).toMatchObject({
      status: 'TIMEOUT',
      failure: { code: 'session.agent-timeout' },
      ending: { kind: 'timeout' },
      built: 'calls',
      grade: { outcome_reward: 1 },
    })
    expect(end.timing.run_ms).toBe(1000)
  })

  test('abandons a harness that does not end, and does not grade it: it may still run', async () => {
    const { end, calls } = await play({
      run: { ms: HOURS, end: 'finished', isDeaf: true },
      limits: { ...longLimits, agentMs: 1000 },
    })
    expect(calls).toEqual(['prepare', 'run', 'seal', 'build', 'tearDown'])
    expect(end).toMatchObject({ status: 'ERROR', failure: { code: 'runtime.gone' }, built: 'calls' })
    expect(end.grade).toBeUndefined()
  })

  test('grades a harness that gives up, and reports its failure', async () => {
    const { end } = await play({ run: { ms: 1, end: 'gave-up' } })
    expect(end).toMatchObject({
      status: 'ERROR',
      failure: { code: 'harness.exit-nonzero' },
      ending: { kind: 'failed', exitCode: 1 },
      grade: { outcome_reward: 1 },
    })
  })

  test.each(['finished', 'gave-up'] as const)(
    'attributes a dead engine to infrastructure although the harness %s',
    async (end) => {
      const played = await play({ run: { ms: 1, end }, build: { ms: 1, lastFailure: 'upstream.unreachable' } })
      expect(played.end).toMatchObject({ status: 'ERROR', failure: { code: 'upstream.unreachable' }, built: 'calls' })
      expect(played.end.grade).toBeUndefined()
      expect(played.calls).not.toContain('grade')
    },
  )

  test('attributes a dead engine to infrastructure also if the agent waited until its time limit', async () => {
    const { end } = await play({
      run: { ms: HOURS, end: 'finished' },
      limits: { ...longLimits, agentMs: 1000 },
      build: { ms: 1, lastFailure: 'upstream.timeout' },
    })
    expect(end).toMatchObject({ status: 'ERROR', failure: { code: 'upstream.timeout' } })
    expect(end.grade).toBeUndefined()
  })

  test('treats a full context as a truncated ending, not as an error', async () => {
    const { end } = await play({
      run: { ms: 1, end: 'gave-up' },
      build: { ms: 1, lastFailure: 'request.context-overflow' },
    })
    expect(end).toMatchObject({ status: 'COMPLETED', ending: { kind: 'truncated' }, grade: { outcome_reward: 1 } })
    expect(end.failure).toBeUndefined()
  })

  test.each([
    ['failed', { run: { ms: 1, end: 'gave-up' as const } }],
    ['ran out of time', { run: { ms: HOURS, end: 'finished' as const }, limits: { ...longLimits, agentMs: 1000 } }],
  ])('does not grade a harness that %s before the model answered', async (_, script) => {
    const { end } = await play({ ...script, build: { ms: 1, answers: 0 } })
    expect(end).toMatchObject({ status: 'ERROR', failure: { code: 'harness.no-answer' } })
    expect(end.grade).toBeUndefined()
  })

  test.each([
    [0, 'upstream.refused'],
    [2, 'harness.exit-nonzero'],
  ])('reports an engine that refuses after %d answers as %s', async (answers, code) => {
    const { end } = await play({
      run: { ms: 1, end: 'gave-up' },
      build: { ms: 1, answers, lastFailure: 'upstream.refused' },
    })
    expect(end).toMatchObject({ status: 'ERROR', failure: { code } })
    expect(end.grade === undefined).toBe(answers === 0)
  })

  test('reports a prompt that never fitted the context as the cause', async () => {
    const { end } = await play({
      run: { ms: 1, end: 'gave-up' },
      build: { ms: 1, answers: 0, lastFailure: 'request.context-overflow' },
    })
    expect(end.failure).toMatchObject({
      code: 'harness.no-answer',
      message: expect.stringContaining('request.context-overflow'),
    })
  })

  test('gives no reward for an incomplete record', async () => {
    const { end, calls } = await play({ build: { ms: 1, incomplete: true } })
    expect(end).toMatchObject({ status: 'ERROR', failure: { code: 'store.unavailable' } })
    expect(calls).not.toContain('grade')
  })

  test.each([
    ['crashes', { ms: 1, fails: 'evaluator.crashed' as const }, 'ERROR', 'evaluator.crashed'],
    ['takes too long', { ms: HOURS }, 'TIMEOUT', 'evaluator.timeout'],
  ])('gives no reward, not zero, if the evaluator %s', async (_, grade, status, code) => {
    const { end } = await play({ grade, limits: { ...longLimits, evaluateMs: 500 } })
    expect(end).toMatchObject({ status, failure: { code }, built: 'calls' })
    expect(end.grade).toBeUndefined()
  })

  test.each([
    ['crashes', { ms: 1, fails: 'evaluator.crashed' as const }, 'evaluator.crashed', 2],
    ['loses its sandbox', { ms: 1, fails: 'runtime.gone' as const }, 'runtime.gone', 2],
    ['throws an error of its own', { ms: 1, fails: 'internal.bug' as const }, 'internal.bug', 2],
    ['takes too long', { ms: HOURS }, 'evaluator.timeout', 1],
  ])('gives the lowest reward if the evaluator %s with the agent’s files only', async (_, grade, code, times) => {
    const { end, calls } = await play({ grade, control: { ms: 1 }, limits: { ...longLimits, evaluateMs: 500 } })
    expect(end).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 0, metadata: { failure: code } } })
    expect(end.failure).toBeUndefined()
    expect(calls.filter((step) => step === 'grade')).toHaveLength(times)
  })

  test('gives the reward of a second grading that succeeds', async () => {
    const { end, calls } = await play({ grade: { ms: 1, fails: 'runtime.gone', times: 1 }, control: { ms: 1 } })
    expect(end).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
    expect(calls).toEqual(['prepare', 'run', 'seal', 'build', 'grade', 'control', 'grade', 'tearDown'])
  })

  test.each<[FailureCode, FailurePhase]>([
    ['runtime.start-failed', 'start-grader'],
    ['runtime.image-missing', 'grade'],
    ['config.invalid', 'grade'],
    ['store.unavailable', 'collect'],
  ])('%s in the phase %s gives no reward, and runs no control', async (fails, phase) => {
    const { end, calls } = await play({ grade: { ms: 1, fails, phase }, control: { ms: 1 } })
    expect(end).toMatchObject({ status: 'ERROR', failure: { code: fails } })
    expect(end.grade).toBeUndefined()
    expect(calls).not.toContain('control')
  })

  test('gives no reward if the control exceeds its time limit', async () => {
    const { end } = await play({
      grade: { ms: 1, fails: 'evaluator.crashed' },
      control: { ms: HOURS },
      limits: { ...longLimits, evaluateMs: 500 },
    })
    expect(end).toMatchObject({ status: 'ERROR', failure: { code: 'evaluator.crashed' } })
    expect(end.grade).toBeUndefined()
  })

  test.each<FailureCode>(['harness.not-found', 'harness.bad-setup', 'runtime.gone'])(
    'an ending that looks like %s is graded after an answer of the model, and is a failure of infrastructure before',
    async (suspicion) => {
      const run = { ms: 1, end: 'gave-up' as const, suspicion }
      const graded = await play({ run })
      expect(graded.end).toMatchObject({ failure: { code: 'harness.exit-nonzero' }, grade: { outcome_reward: 1 } })
      const ours = await play({ run, build: { ms: 1, answers: 0 } })
      expect(ours.end).toMatchObject({ status: 'ERROR', failure: { code: suspicion } })
      expect(ours.end.grade).toBeUndefined()
    },
  )

  test.each([
    ['passed', 'upstream.failed', true],
    ['failed', 'upstream.failed', false],
    [undefined, 'upstream.failed', false],
    ['passed', 'upstream.unreachable', false],
  ] as const)(
    'the last call failed, engine control %s, %s: graded %s',
    async (engineControl, lastFailure, isGraded) => {
      const build = { ms: 1, lastFailure, ...(engineControl === undefined ? {} : { engineControl }) }
      const { end } = await play({ run: { ms: 1, end: 'gave-up' }, build })
      expect(end.grade !== undefined).toBe(isGraded)
      expect(end.failure?.code).toBe(isGraded ? 'harness.exit-nonzero' : lastFailure)
    },
  )

  test.each(['finished', 'gave-up'] as const)(
    'gives the lowest reward for calls that are too large to build, agent %s',
    async (end) => {
      const played = await play({ run: { ms: 1, end }, build: { ms: 1, fails: 'session.too-large' } })
      expect(played.end).toMatchObject({
        status: 'ERROR',
        failure: { code: 'session.too-large' },
        ending: { kind: end === 'finished' ? 'completed' : 'failed' },
        grade: { outcome_reward: 0, metadata: { failure: 'session.too-large' } },
      })
      expect(played.calls).not.toContain('grade')
    },
  )

  test('gives the lowest reward for calls that are too large to be read for grading', async () => {
    const { end, calls } = await play({ grade: { ms: 1, fails: 'session.too-large', phase: 'build' } })
    expect(end.grade).toMatchObject({ outcome_reward: 0, metadata: { failure: 'session.too-large' } })
    expect(calls).not.toContain('control')
  })

  test.each<Partial<Script>>([
    { build: { ms: 1, fails: 'internal.bug' } },
    { build: { ms: 1, fails: 'store.corrupt' } },
    { build: { ms: 1, fails: 'session.too-large' }, run: { ms: 1, end: 'finished', fails: 'runtime.gone' } },
    { build: { ms: 20, fails: 'session.too-large' }, run: { ms: 1, end: 'finished' }, cancelAt: 20 },
  ])(
    'gives no reward for calls that cannot be built for another reason, or of a run that infrastructure ended: %o',
    async (script) => {
      const { end } = await play(script)
      expect(end.status).not.toBe('COMPLETED')
      expect(end.grade).toBeUndefined()
    },
  )

  test('a sandbox that cannot be removed does not change the outcome', async () => {
    const { end, problems } = await play({ tearDown: { ms: 1, fails: 'runtime.gone' } })
    expect(end).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
    expect(problems).toMatchObject([{ failure: { code: 'runtime.gone' } }])
  })

  test('the limit of the whole session ends the harness, but not its grading', async () => {
    const { end } = await play({ limits: { ...longLimits, sessionMs: 60 } })
    expect(end).toMatchObject({
      status: 'TIMEOUT',
      failure: { code: 'session.agent-timeout', message: expect.stringContaining('whole session') },
      grade: { outcome_reward: 1 },
    })
    expect(end.timing.run_ms).toBe(50)
  })

  test.each([
    ['INIT', 5, ['prepare', 'tearDown']],
    ['RUNNING', 50, ['prepare', 'run', 'seal', 'build', 'tearDown']],
    ['EVALUATING', 115, ALL],
  ])('a cancel in %s ends as CANCELLED, tears down once, and builds the captured calls', async (_, cancelAt, steps) => {
    const { end, calls } = await play({ cancelAt })
    expect(calls).toEqual(steps)
    expect(end).toMatchObject({
      status: 'CANCELLED',
      failure: { code: 'session.cancelled', message: 'by the operator' },
    })
    expect(end.grade).toBeUndefined()
    expect(end.built).toBe(steps.includes('build') ? 'calls' : undefined)
  })

  test('a cancel in the queue ends the session before it starts', async () => {
    const clock = new FakeClock()
    const stages = new Stages(widths)
    const held = await Promise.all([stages.init.acquire(0), stages.init.acquire(0)])
    const cancel = new AbortController()
    clock.after(10, () => cancel.abort(new Error('stop')))
    const steps = new ScriptedSteps(clock, plain)
    const deps = { stages, clock, onTransition: async () => {}, onError: () => {} }
    const end = await clock.run(runSession(plain, steps, deps, cancel.signal))
    expect(end.status).toBe('CANCELLED')
    expect(steps.calls).toEqual(['tearDown'])
    expect(stages.init.waiting).toBe(0)
    for (const slot of held) slot.release()
  })
})

test('time limits do not include time in queues', async () => {
  const clock = new FakeClock()
  const stages = new Stages({ init: 2, ready: 2, run: 1, postrun: 2, backlog: 2 })
  const deps = { stages, clock, onTransition: async () => {}, onError: () => {} }
  const script = {
    ...plain,
    run: { ms: 900, end: 'finished' as const },
    limits: { ...longLimits, agentMs: 1000, sessionMs: 1000 },
  }
  const all = Array.from({ length: 5 }, () =>
    runSession(script, new ScriptedSteps(clock, script), deps, new AbortController().signal),
  )
  const ends = await clock.run(Promise.all(all))
  expect(ends.map(({ status }) => status)).toEqual(['COMPLETED', 'COMPLETED', 'COMPLETED', 'COMPLETED', 'COMPLETED'])
  expect(Math.max(...ends.map(({ timing }) => timing.ready_queue_ms!))).toBeGreaterThan(1000)
})

test('the ready and backlog stages limit the prepared and the ungraded sessions', async () => {
  const clock = new FakeClock()
  const stages = new Stages({ init: 3, ready: 2, run: 1, postrun: 1, backlog: 1 })
  let prepared = 0
  let most = 0
  const deps = { stages, clock, onTransition: async () => {}, onError: () => {} }
  const all = Array.from({ length: 20 }, () => {
    const steps = new ScriptedSteps(clock, plain, (step) => {
      if (step === 'seal') prepared -= 1
      if (step === 'prepare') prepared += 1
      most = Math.max(most, prepared)
    })
    return runSession(plain, steps, deps, new AbortController().signal)
  })
  await clock.run(Promise.all(all))
  expect(most).toBe(3 + 2 + 1)
})

const ms = fc.integer({ min: 0, max: 200 })
const infrastructure: FailureCode[] = ['runtime.gone', 'runtime.out-of-disk', 'runtime.start-failed', 'internal.bug']
const behaviour = fc.record(
  { ms, fails: fc.constantFrom(...infrastructure), isDeaf: fc.boolean() },
  { requiredKeys: ['ms'] },
)
const aBudget = fc.constantFrom(20, 100, HOURS)
const scripts: fc.Arbitrary<Script> = fc.record(
  {
    prepare: behaviour,
    run: fc.record(
      {
        ms,
        fails: fc.constantFrom(...infrastructure),
        isDeaf: fc.boolean(),
        end: fc.constantFrom('finished', 'gave-up', 'limit-reached'),
      },
      { requiredKeys: ['ms', 'end'] },
    ),
    build: fc.record(
      {
        ms: fc.constant(1),
        answers: fc.constantFrom(0, 1),
        lastFailure: fc.constantFrom(
          'upstream.reset',
          'upstream.refused',
          'request.context-overflow',
          'request.client-gone',
        ),
        incomplete: fc.boolean(),
      },
      { requiredKeys: ['ms'] },
    ),
    grade: fc.record(
      {
        ms,
        fails: fc.constantFrom('evaluator.crashed' as const, 'runtime.gone' as const),
        times: fc.integer({ min: 1, max: 2 }),
        phase: fc.constantFrom<FailurePhase>('collect', 'start-grader', 'grade'),
        isDeaf: fc.boolean(),
      },
      { requiredKeys: ['ms'] },
    ),
    control: fc.record({ ms, fails: fc.constant('runtime.gone' as const) }, { requiredKeys: ['ms'] }),
    tearDown: fc.record({ ms, fails: fc.constant('runtime.gone' as const) }, { requiredKeys: ['ms'] }),
    limits: fc.record({ initMs: aBudget, agentMs: aBudget, evaluateMs: aBudget, sessionMs: aBudget }),
    priority: fc.integer({ min: 0, max: 2 }),
    cancelAt: fc.integer({ min: 0, max: 600 }),
  },
  { requiredKeys: ['prepare', 'run', 'build', 'grade', 'control', 'tearDown', 'limits', 'priority'] },
)
const someWidths = fc.record({
  init: fc.integer({ min: 1, max: 3 }),
  ready: fc.integer({ min: 0, max: 2 }),
  run: fc.integer({ min: 1, max: 2 }),
  postrun: fc.integer({ min: 1, max: 2 }),
  backlog: fc.integer({ min: 1, max: 2 }),
})

test('random schedules: no slot leaks, one teardown, one end, no undeserved reward', async () => {
  await fc.assert(
    fc.asyncProperty(someWidths, fc.array(scripts, { minLength: 1, maxLength: 6 }), async (width, all) => {
      const clock = new FakeClock()
      const stages = new Stages(width)
      const pools = [stages.init, stages.ready, stages.run, stages.postrun, stages.backlog]
      const expectSound = (): void => {
        // expect() is too slow for millions of calls.
        if (pools.some((pool) => pool.inUse < 0 || pool.inUse > pool.width))
          throw new Error('a stage has too many sessions')
      }
      const played = all.map(async (script) => {
        const steps = new ScriptedSteps(clock, script, expectSound)
        const states: SessionStatus[] = []
        const cancel = new AbortController()
        if (script.cancelAt !== undefined) clock.after(script.cancelAt, () => cancel.abort(new Error('stop')))
        const onTransition = async ({ to }: { to: SessionStatus }): Promise<void> => {
          expectSound()
          states.push(to)
        }
        const deps = { stages, clock, onTransition, onError: () => {} }
        return { script, steps, states, end: await runSession(script, steps, deps, cancel.signal) }
      })
      for (const { script, steps, states, end } of await clock.run(Promise.all(played))) {
        expect(states.filter(isTerminal)).toEqual([end.status])
        expect(states.at(-1)).toBe(end.status)
        const count = (step: Step): number => steps.calls.filter((call) => call === step).length
        expect(count('tearDown')).toBe(1)
        expect(steps.calls.at(-1)).toBe('tearDown')
        // Every session that ran is sealed and built, and its calls are in the result.
        expect([count('seal'), count('build')]).toEqual([count('run'), count('run')])
        expect(end.built).toBe(count('run') === 1 ? 'calls' : undefined)
        const blame = end.failure === undefined ? undefined : failureClasses[end.failure.code].blame
        if (end.grade !== undefined) expect([undefined, 'policy']).toContain(blame)
        if (end.status === 'CANCELLED') expect(end.grade).toBeUndefined()
        // The lowest reward requires a passed control.
        if (end.grade?.outcome_reward === 0) expect([count('control'), script.control.fails]).toEqual([1, undefined])
        if (end.status === 'COMPLETED') expect(end.grade).toBeDefined()
        // Time in queues does not count towards a time limit.
        if (end.failure?.code === 'session.agent-timeout') {
          const { agentMs, sessionMs } = script.limits
          expect(end.timing.run_ms!).toBeGreaterThanOrEqual(
            Math.min(agentMs, sessionMs - end.timing.init_ms!, script.run.ms),
          )
        }
        if (!script.run.isDeaf) expect(steps.underway.has('run')).toBe(false)
      }
      expect(pools.map(({ inUse, waiting }) => [inUse, waiting])).toEqual(pools.map(() => [0, 0]))
    }),
    { numRuns: runs(3000) },
  )
}, 300_000)
