import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { saveResults, type AttackResult } from './attack-results.ts'
import { AttackRange, type RangeOptions } from './attack-range.ts'
import { attacks } from './catalogue.ts'

/** Runs the catalogue of attacks on one runtime and stores the results for the table in the documentation. */
export function describeAttacks(options: RangeOptions): void {
  describe(`attacks on ${options.name}`, { timeout: 180_000 }, () => {
    let range: AttackRange
    let unusable: string | undefined
    const results: AttackResult[] = []
    beforeAll(async () => {
      range = await AttackRange.start(options)
      unusable = await range.whyUnusable()
      if (unusable !== undefined) console.log(`${options.name} cannot run here: ${unusable}`)
    })
    afterAll(async () => {
      await range?.settle()
      const left = unusable === undefined ? await range.runtime.list() : []
      await range?.[Symbol.asyncDispose]()
      await saveResults(
        options.name,
        results,
        attacks.map(({ id }) => id),
      )
      expect(left).toEqual([])
    })

    for (const { run, whyNot, ...about } of attacks) {
      test(about.title, async ({ skip }) => {
        if (unusable !== undefined) skip(unusable)
        const reason = whyNot?.(range)
        if (reason !== undefined) {
          results.push({ ...about, result: 'does not apply', reason })
          skip(reason)
        }
        try {
          await run(range)
          results.push({ ...about, result: 'holds' })
        } catch (error) {
          results.push({ ...about, result: 'succeeds' })
          throw error
        }
      })
    }

    test('after all attacks the node finishes an innocent session', async ({ skip }) => {
      if (unusable !== undefined) skip(unusable)
      const session = await range.run('ask one > /dev/null; echo done > work', {
        evaluator: { strategy: 'command', config: { command: 'test "$(cat work)" = done' } },
      })
      expect(session.outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 }, counts: { calls: 1 } })
    })
  })
}
