import { mkdtemp, readdir, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { emptySession } from '../../../test/support/grade.ts'
import { taskOf } from '../../../test/support/node-stack.ts'
import { RolloutError, type FailureCode } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { Collection, Evaluation, Evaluator } from '../../trajectory/evaluators/evaluator.ts'
import { refuseGrade, SessionGrading, type GradingOptions } from './grade-session.ts'
import type { Sandbox } from '../sandbox/runtimes/runtime.ts'

const NEVER = new AbortController().signal
const CRASHED = { code: 'evaluator.crashed' } as const

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-grading-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

interface Script {
  evaluator: Partial<Evaluator>
  /** Failures of the first start of a grader, by its source. */
  fails?: Partial<Record<'clean' | 'untouched' | 'agent', FailureCode>>
  freeBytes?: number
}

async function open({ evaluator, fails = {}, freeBytes = 1024 ** 4 }: Script) {
  const evidence = new Map<string, string>()
  const taken: string[] = []
  const stopped: string[] = []
  const toSandbox = (id: string) =>
    ({ id, workdir: '/w', stop: async () => void stopped.push(id) }) as unknown as Sandbox
  const options: GradingOptions = {
    evaluator: {
      needs: { sandbox: true, agentState: false },
      evaluate: async () => ({ outcome_reward: 1, metadata: {} }),
      ...evaluator,
    },
    agent: toSandbox('agent'),
    snapshot: 'state',
    graders: {
      async acquire(from) {
        taken.push(from)
        const code = fails[from]
        if (code !== undefined) throw new RolloutError(code, `No ${from} sandbox`)
        return toSandbox(from)
      },
    },
    built: { session: emptySession('ses_1'), summary: { rows: 2 }, conversation: () => [], transcript: () => [] },
    ending: { kind: 'completed', exitCode: 0 },
    task: taskOf({ agent: { harness: 'shell', custom_shell: { command: 'true' } } }),
    submission: await mkdtemp(join(dir, 'submission-')),
    assertUpload: async () => {},
    artifacts: { write: async (name, data) => void evidence.set(name, String(data)) },
    freeBytes: async () => freeBytes,
  }
  return { grading: new SessionGrading(options), options, evidence, taken, stopped }
}

const gives = (result: Partial<EvalResult>) => ({ evaluate: async () => ({ metadata: {}, ...result }) })

test.each<[string, Partial<EvalResult>, RegExp]>([
  ['NaN', { outcome_reward: Number.NaN }, /no valid result/],
  ['an infinite reward', { outcome_reward: -Infinity }, /no valid result/],
  ['a reward outside of 0 to 1', { outcome_reward: 1.01 }, /1\.01 is outside of the declared range, 0 to 1/],
  ['a reward of a trace outside', { trace_rewards: [0, -1] }, /-1 is outside of the declared range/],
  ['a component that is not finite', { outcome_reward: 1, components: { a: Infinity } }, /no valid result/],
  ['too few rewards of traces', { trace_rewards: [1] }, /1 rewards for 2 samples/],
])('grade() rejects %s', async (_, result, message) => {
  const { grading } = await open({ evaluator: gives(result) })
  const failed = grading.grade(NEVER)
  await expect(failed).rejects.toMatchObject({ code: 'evaluator.crashed', message: expect.stringMatching(message) })
  expect(grading.phase).toBe('grade')
})

test('refuseGrade() returns the lowest reward of the declared range', async () => {
  const evaluator = { rewards: [-3, 9] as const, ...gives({ outcome_reward: 7 }) }
  const { grading, options, evidence } = await open({ evaluator })
  expect(await grading.grade(NEVER)).toMatchObject({ outcome_reward: 7 })
  const { failure } = new RolloutError('runtime.gone', 'The sandbox is gone.')
  expect(await refuseGrade(failure, { ...options, phase: grading.phase })).toEqual({
    outcome_reward: -3,
    metadata: { failure: 'runtime.gone', message: 'The sandbox is gone.', phase: 'grade' },
  })
  expect(JSON.parse(evidence.get('evaluator/attribution.json')!)).toMatchObject({ blame: 'policy', phase: 'grade' })
})

test('grade() returns the lowest reward if the files of the agent cannot be copied', async () => {
  const collect = () => Promise.reject(new RolloutError('workspace.too-large', 'Too many files'))
  const { grading, stopped } = await open({ evaluator: { rewards: [-1, 1], collect } })
  expect(await grading.grade(NEVER)).toMatchObject({
    outcome_reward: -1,
    metadata: { failure: 'workspace.too-large', phase: 'collect' },
  })
  expect(stopped).toEqual([])
})

test('phase is start-grader only if a clean sandbox did not start', async () => {
  const evaluate = async ({ grader }: Evaluation): Promise<EvalResult> => {
    await grader('clean')
    await grader('agent')
    return { outcome_reward: 1, metadata: {} }
  }
  const phaseOf = async (fails: Script['fails']) => {
    const { grading } = await open({ evaluator: { evaluate }, ...(fails && { fails }) })
    await expect(grading.grade(NEVER)).rejects.toMatchObject({ code: 'runtime.start-failed' })
    return grading.phase
  }
  expect(await phaseOf({ clean: 'runtime.start-failed' })).toBe('start-grader')
  expect(await phaseOf({ agent: 'runtime.start-failed' })).toBe('grade')
})

test('grade() collects again only if the collection failed', async () => {
  const seen: string[] = []
  let failures = 1
  const collect = async (_: unknown, { submission }: Collection) => {
    seen.push(submission)
    if (failures-- > 0) throw new RolloutError('runtime.copy-failed', 'tar: error')
  }
  const { grading, stopped } = await open({ evaluator: { collect } })
  await expect(grading.grade(NEVER)).rejects.toMatchObject({ code: 'runtime.copy-failed' })
  expect(grading.phase).toBe('collect')
  expect(stopped).toEqual([])
  await grading.grade(NEVER)
  await grading.grade(NEVER)
  expect(seen).toHaveLength(2)
  expect(seen[0]).not.toBe(seen[1])
  expect(stopped).toEqual(['agent'])
})

test('control() sees no data of the agent, and marks its session id and evidence', async () => {
  const asked: Evaluation[] = []
  const { grading, evidence, taken, stopped } = await open({
    evaluator: {
      collect: async (_, { submission, evidence: keep }) => {
        expect(await readdir(submission)).toEqual([])
        await keep.write('collected.txt', 'x')
      },
      async evaluate(evaluation) {
        asked.push(evaluation)
        await evaluation.grader('agent')
        await evaluation.evidence.write('log.txt', 'x')
        return { outcome_reward: 0, metadata: {} }
      },
    },
  })
  await grading.control(CRASHED, NEVER)
  expect(taken).toEqual(['untouched', 'clean'])
  expect(stopped).toEqual(['untouched'])
  expect([...evidence.keys()]).toEqual(['evaluator/control.collected.txt', 'evaluator/control.log.txt'])
  expect(asked[0]).toMatchObject({ sessionId: 'ses_1-control', session: { turns: [] }, samples: 2 })
  expect([asked[0]!.conversation(), asked[0]!.transcript()]).toEqual([[], []])
})

test('control() passes if files of the agent are missing, and fails for every other failure', async () => {
  const controlOf = async (script: Script) => (await open(script)).grading.control(CRASHED, NEVER)
  const collect = (code: FailureCode) => () => Promise.reject(new RolloutError(code, 'no'))
  await controlOf({ evaluator: { collect: collect('workspace.file-missing') } })
  await expect(controlOf({ evaluator: { collect: collect('runtime.copy-failed') } })).rejects.toThrow('no')
  await expect(controlOf({ evaluator: gives({ outcome_reward: 5 }) })).rejects.toThrow('outside of the declared range')
  const fails = { untouched: 'runtime.image-missing' as const }
  await expect(controlOf({ evaluator: { collect: async () => {} }, fails })).rejects.toThrow('No untouched sandbox')
})

test.each<[string, number, 'passes' | 'fails']>([
  ['the agent filled', 5 * 1024 ** 3, 'passes'],
  ['is full without it', 1024, 'fails'],
])('a disk that %s: control() %s after the sandbox of the agent is stopped', async (_, freeBytes, verdict) => {
  const collect = () => Promise.reject(Object.assign(new Error('write'), { code: 'ENOSPC' }))
  const { grading, stopped } = await open({ evaluator: { collect }, freeBytes })
  await expect(grading.grade(NEVER)).rejects.toMatchObject({ code: 'runtime.out-of-disk' })
  expect(stopped).toEqual([])
  const clean = await open({ evaluator: {}, freeBytes })
  const control = clean.grading.control({ code: 'runtime.out-of-disk' }, NEVER)
  if (verdict === 'passes') await control
  else await expect(control).rejects.toThrow('The disk of this machine is full')
  expect(clean.stopped).toEqual(['agent'])
})
