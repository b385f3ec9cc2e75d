import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { explain } from '../support/jepsen/check-history.ts'
import { type JepsenOptions, runJepsen } from '../support/jepsen/run-jepsen.ts'
import { startPostgres, whyNoPostgres } from '../support/postgres.ts'
import { runs } from '../support/runs.ts'

const SESSIONS = runs(200)
const LEASE_MS = 4000
const SETTLE_MS = 480_000
const TIMEOUT_MS = 1_500_000

/** `POLAR_JEPSEN_SEED` repeats a failed run. */
const seed = Number(process.env['POLAR_JEPSEN_SEED'] ?? Math.floor(Math.random() * 2 ** 31))

async function expectNothingLost(name: string, more: Partial<JepsenOptions> = {}): Promise<void> {
  const dir = await mkdtemp(join(tmpdir(), `polar-jepsen-${name}-`))
  console.log(`${name}: seed ${seed}, in ${dir}`)
  const base = { dir, seed, sessions: SESSIONS, leaseMs: LEASE_MS, settleMs: SETTLE_MS }
  const { violations, history, historyFile, summary } = await runJepsen({
    ...base,
    runtimes: ['local', 'local', 'local', 'bubblewrap'],
    ...more,
  })
  console.log(JSON.stringify(summary))
  const explanations = violations.slice(0, 20).map((violation) => explain(violation, history))
  // A failed run keeps its folder for analysis.
  const where = `seed ${seed}; ${violations.length} violations; history in ${historyFile}`
  expect(explanations.join('\n'), where).toBe('')
  await rm(dir, { recursive: true, force: true })
}

test(
  'embedded: no result is lost, duplicated or invented despite killed processes, network faults and forged reports',
  { timeout: TIMEOUT_MS },
  () => expectNothingLost('embedded'),
)

test(
  'PostgreSQL: no result is lost, duplicated or invented, even if PostgreSQL is killed as well',
  { timeout: TIMEOUT_MS },
  async (context) => {
    const reason = whyNoPostgres()
    if (reason !== undefined) return context.skip(reason)
    await using postgres = await startPostgres({ fsync: true })
    await expectNothingLost('postgres', {
      postgres: { cluster: postgres, url: await postgres.createDatabase('jepsen') },
    })
  },
)
