import { existsSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pino from 'pino'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { openTrainDemo, type OpenTrainDemo } from '../../src/compose/open-train-demo.ts'
import type { SessionResult } from '../../src/model/session.ts'
import type { Trace } from '../../src/model/trajectory.ts'
import { installFolder } from '../../src/node/harness/find-harness.ts'
import { pi } from '../../src/node/harness/presets/pi.ts'
import { createLowRank, type LowRank } from '../../src/train/low-rank.ts'
import { readBatch } from '../../src/train/read-batch.ts'
import { train, type StepReport } from '../../src/train/train.ts'
import { DEMO_OPTIONS, DEMO_RANK } from '../../src/train/demo-options.ts'
import { toTrainSession, TrainDataError } from '../../src/train/train-session.ts'
import { copyDatabase } from '../support/database-template.ts'
import { whyNoHarness } from '../support/installed-harness.ts'

/** Two steps of `polar train-demo` with pi in sandboxes. test/e2e/train-learning.test.ts tests that the reward rises. */

const SAMPLES = 5
const { dir: harnessDir } = harnessPlaces(undefined, process.env)
const isInstalled = existsSync(installFolder(pi, harnessDir))

describe.skipIf(!isInstalled)(`two steps of the demo${isInstalled ? '' : ` (${whyNoHarness(pi)})`}`, () => {
  let folder: string
  let demo: OpenTrainDemo
  let initial: LowRank
  const results: SessionResult[] = []
  const steps: StepReport[] = []

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'polar-train-'))
    await copyDatabase(join(folder, 'database'))
    demo = await openTrainDemo({
      data: folder,
      seed: 1,
      tasksPerStep: 1,
      samples: SAMPLES,
      maxLag: 0,
      harnessDir,
      env: process.env,
      logger: pino({ level: 'silent' }),
      onSession: (result) => void results.push(result),
    })
    initial = createLowRank(DEMO_RANK, demo.shape, demo.random)
    const deps = { ...demo.deps, now: () => 0, onStep: (step: StepReport) => void steps.push(step) }
    await train(initial, { ...DEMO_OPTIONS, steps: 2, maxLag: 0 }, deps)
  }, 600_000)
  afterAll(async () => {
    await demo[Symbol.asyncDispose]()
    await rm(folder, { recursive: true, force: true })
  }, 60_000)

  const stepOf = ({ task_id: id }: SessionResult) => Number(id.split('-').at(-2))
  const firstStep = () => results.filter((result) => stepOf(result) === 1)

  /** Reads the sessions of the first step as the trainer does. */
  const read = async (changed: readonly SessionResult[]) =>
    readBatch(
      changed.flatMap((result) => toTrainSession(result) ?? []),
      { ...DEMO_OPTIONS, read: demo.deps.read, weightsOf: (version) => (version === 1 ? initial : undefined) },
    )
  const withTraces = (change: (trace: Trace) => Trace) =>
    firstStep().map((result) => ({
      ...result,
      trajectory: { ...result.trajectory, traces: result.trajectory.traces.map(change) },
    }))

  test('every sampled token has the version of the weights that sampled it', () => {
    for (const result of results) {
      const versions = toTrainSession(result)!.calls.flatMap((call) => [...call.versions])
      expect(versions.length).toBeGreaterThan(0)
      expect(new Set(versions)).toEqual(new Set([stepOf(result)]))
    }
    expect(results).toHaveLength(2 * SAMPLES)
    expect(steps.map(({ maxLag }) => maxLag)).toEqual([0, 0])
  })

  test('the log probability of every trained token is that of teacher forcing', async () => {
    const { tokens, maxLogprobError } = await read(firstStep())
    expect(tokens.length).toBeGreaterThan(2 * SAMPLES)
    expect(maxLogprobError).toBeLessThan(1e-5)
    for (const step of steps) expect(step.maxLogprobError).toBeLessThan(1e-5)
  })

  test('a batch whose masks are shifted by one token is rejected', async () => {
    const shifted = withTraces((trace) => ({ ...trace, loss_mask: [0, ...trace.loss_mask.slice(0, -1)] }))
    await expect(read(shifted)).rejects.toThrow(TrainDataError)
  })

  test('a batch whose log probabilities are shuffled is rejected', async () => {
    const shuffled = withTraces((trace) => {
      const logprobs = trace.response_logprobs!.map((value, i) => (trace.loss_mask[i] === 1 ? value : undefined))
      const sampled = logprobs.filter((value) => value !== undefined).toReversed()
      return { ...trace, response_logprobs: logprobs.map((value) => (value === undefined ? 0 : sampled.shift()!)) }
    })
    await expect(read(shuffled)).rejects.toThrow(TrainDataError)
  })
})
