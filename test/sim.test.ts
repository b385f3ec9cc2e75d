import { expect, test } from 'vitest'
import { runIdeal } from '../bench/sim/baselines/ideal.ts'
import { VirtualClock } from '../bench/sim/clock.ts'
import { readFlags } from '../bench/sim/flags.ts'
import { createRandom, drawMs } from '../bench/sim/random.ts'
import type { Scenario } from '../bench/sim/scenario.ts'
import { simulate } from '../bench/sim/simulate.ts'

/** Short sessions and rare checks of leases: the cost of a simulation depends on virtual time more than on sessions. */
const QUICK =
  '--run-s lognormal:40:0.9 --init-s lognormal:6:0.5 --postrun-s lognormal:4:0.5 --timeout-s 300 --expire-s 5'

/** The test needs ten seconds of one core, which other tests may use too. */
const LONG_MS = 600_000

function scenarioOf(flags: string): Scenario {
  const options = readFlags(flags.split(' '))
  if (options === undefined) throw new Error('help was not asked for')
  return options.scenario
}

test(
  'every session ends once and all counts agree, with failures of 20 nodes and 480 sessions',
  { timeout: LONG_MS },
  async () => {
    const scenario = scenarioOf(
      `--nodes 20 --sessions 480 ${QUICK} --label gpu:0.4 --failures 0.05 --node-life-s 1000 --outage 60:30 --lose-half 150 ` +
        '--gather-ms 200 --herd --trainer sync:groups=12,train=10,early-stop=6 --trainer sync:groups=6,train=10,labels=gpu,priority=5,share=0.5 ' +
        '--trainer async:groups=18,share=4,staleness=8',
    )
    const { polar, nvidia, ideal } = await simulate({ scenario, baselines: true, json: false })
    expect(polar.problems).toEqual([])
    const { sessions, valid, failed, cancelled, refills, use, wastedHours } = polar.summary
    expect(valid + failed + cancelled).toBe(sessions)
    expect(refills).toBeGreaterThan(0)
    expect(wastedHours['node died']).toBeGreaterThan(0)
    expect(use).toBeGreaterThan(0.5)
    expect(failed).toBeLessThan(nvidia!.failed)
    expect(polar.summary.makespanS).toBeGreaterThan(ideal!.makespanS)
  },
)

test('simulations with the same seed are identical', { timeout: LONG_MS }, async () => {
  const run = async (seed: number) => {
    const scenario = scenarioOf(`--nodes 3 --sessions 40 ${QUICK} --node-life-s 300 --outage 60:20 --seed ${seed}`)
    const { polar, nvidia, ideal } = await simulate({ scenario, baselines: true, json: false })
    expect(polar.problems).toEqual([])
    return JSON.stringify([polar.summary, polar.database.statements, polar.database.rows, nvidia, ideal])
  }
  const first = await run(7)
  expect(await run(7)).toBe(first)
  expect(await run(8)).not.toBe(first)
})

test('the ideal duration is the work divided by the slots if all sessions are equal', async () => {
  const flags =
    '--nodes 5 --run 4 --sessions 100 --trainer sync:groups=10,samples=10 --run-s 10 --init-s 0 --postrun-s 0'
  const { ledger } = await runIdeal({ ...scenarioOf(flags), nodeLifeMs: Infinity, joinWithinMs: 0 })
  expect(ledger.lastMs).toBe(50_000)
  expect(ledger.slotMs.saturatedBusy).toBe(ledger.slotMs.saturated)
})

test('virtual time advances in order, and not while real work runs', async () => {
  const clock = new VirtualClock()
  const seen: string[] = []
  clock.after(20, () => seen.push(`b ${clock.elapsed}`))
  clock.after(10, () => {
    seen.push(`a ${clock.elapsed}`)
    void clock.outside(new Promise((resolve) => setTimeout(resolve, 5))).then(() => seen.push(`real ${clock.elapsed}`))
  })
  clock.after(10, () => seen.push('never'))()
  await clock.run(() => clock.elapsed === 20)
  expect(seen).toEqual(['a 10', 'real 10', 'b 20'])
  await expect(clock.run(() => false)).rejects.toThrow('there is no timer left')
})

test('drawMs() draws durations with the configured median and tail', () => {
  const random = createRandom(1, 'durations')
  const draw = (durations: Parameters<typeof drawMs>[0]): number[] =>
    Array.from({ length: 20_000 }, () => drawMs(durations, random)).sort((a, b) => a - b)
  const lognormal = draw({ kind: 'lognormal', medianMs: 1000, sigma: 1 })
  expect(lognormal[10_000]).toBeCloseTo(1000, -2)
  expect(lognormal[16_827]! / 1000).toBeCloseTo(Math.E, 0)
  const pareto = draw({ kind: 'pareto', leastMs: 1000, alpha: 2 })
  expect(pareto[0]).toBeGreaterThanOrEqual(999)
  expect(pareto[10_000]! / 1000).toBeCloseTo(Math.SQRT2, 1)
  expect(pareto[19_800]! / 1000).toBeCloseTo(10, -1)
})
