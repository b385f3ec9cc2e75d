import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { harnessPlaces } from '../../src/cli/harness-places.ts'
import { findHarness } from '../../src/node/find-harness.ts'
import { harnesses } from '../../src/node/harnesses/index.ts'
import { runtimes } from '../../src/node/runtimes/index.ts'
import { runInSandbox } from '../support/harness-in-sandbox.ts'
import { scenarios } from '../support/harness-scenarios.ts'
import { harnessTools } from '../support/harness-tools.ts'

const basic = scenarios.find(({ name }) => name === 'basic')!

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-sandboxed-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

describe.each(harnesses.filter(({ name }) => harnessTools[name] !== undefined))(
  '$title from its bundle, in a sandbox that reaches nothing but its session',
  (harness) => {
    test('writes its files inside bubblewrap', async (context) => {
      const places = harnessPlaces(undefined, process.env)
      const found = await findHarness(harness, places)
      if (found?.bundle === undefined) {
        return context.skip(`${harness.name} is not installed: npm run polar -- harness install ${harness.name}`)
      }
      await using runtime = runtimes.create(runtimes.config.parse({ kind: 'bubblewrap' }), { dir, now: Date.now })
      const checked = await runtime.check(AbortSignal.timeout(30_000))
      if (!checked.isUsable) return context.skip(checked.reason)
      const { result, stdout, stderr, session, files } = await runInSandbox(harness, basic, { runtime, found })
      expect(result, stderr).toMatchObject({ exitCode: 0, isTimedOut: false })
      expect(files).toEqual(basic.files)
      expect(stdout.trimEnd().endsWith(basic.says), stdout).toBe(true)
      expect(session).toMatchObject({ complete: true, incompleteReasons: [] })
      expect(session.turns.map(({ response, delivery }) => [response?.grade, delivery])).toEqual(
        session.turns.map(() => ['exact', 'delivered']),
      )
      expect(session.turns).toHaveLength(3)
    })
  },
)
