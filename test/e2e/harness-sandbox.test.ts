import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { findHarness } from '../../src/node/harness/find-harness.ts'
import { harnesses } from '../../src/node/harness/presets/index.ts'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import { whyNoHarness } from '../support/installed-harness.ts'
import { runInSandbox } from '../support/harness-in-sandbox.ts'
import { scenarios } from '../support/harness-scenarios.ts'
import { harnessTools } from '../support/harness-tools.ts'
import { findApptainer } from '../support/apptainer.ts'
import { startPodman } from '../support/podman.ts'
import { bubblewrapConfig } from '../support/bubblewrap.ts'

const basic = scenarios.find(({ name }) => name === 'basic')!
const facts = fileURLToPath(new URL('../../.polar/harness-matrix', import.meta.url))
const podman = await startPodman()
const apptainer = findApptainer()

/** Kinds of sandboxes, each with its image or the reason why it is skipped. */
const kinds = [
  { name: 'bubblewrap', config: bubblewrapConfig, image: undefined, missing: undefined },
  typeof podman === 'string'
    ? { name: 'a container', config: { kind: 'docker' }, image: undefined, missing: podman }
    : {
        name: 'a container',
        config: { kind: 'docker', socket: podman.socket, pull: 'never' },
        image: podman.image,
        missing: undefined,
      },
  typeof apptainer === 'string'
    ? { name: 'Apptainer', config: { kind: 'apptainer' }, image: undefined, missing: apptainer }
    : {
        name: 'Apptainer',
        config: { kind: 'apptainer', program: apptainer.program },
        image: apptainer.image,
        missing: undefined,
      },
]

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-sandboxed-'))
})
afterAll(async () => {
  if (typeof podman !== 'string') await podman[Symbol.asyncDispose]()
  await rm(dir, { recursive: true, force: true })
})

describe.each(harnesses.filter(({ name }) => harnessTools[name] !== undefined))(
  '$title from its bundle, in a sandbox that can connect only to its session',
  (harness) => {
    const seen: Record<string, number> = {}

    /** Writes the input of docs/harness-matrix.md. */
    afterAll(async () => {
      if (kinds.some(({ config }) => seen[config.kind] === undefined)) return
      await mkdir(facts, { recursive: true })
      await writeFile(join(facts, `${harness.name}.sandbox.json`), `${JSON.stringify(seen)}\n`)
    })

    test.for(kinds)('writes its files inside $name', async ({ config, image, missing }, context) => {
      const found = await findHarness(harness, harnessPlaces(undefined, process.env))
      if (found?.bundle === undefined) {
        return context.skip(whyNoHarness(harness))
      }
      if (missing !== undefined) return context.skip(missing)
      await using runtime = runtimes.create(runtimes.config.parse(config), { dir, now: Date.now })
      const checked = await runtime.check(AbortSignal.timeout(30_000))
      if (!checked.isUsable) return context.skip(checked.reason)
      const run = await runInSandbox(harness, basic, { runtime, found, ...(image === undefined ? {} : { image }) })
      expect(run.result, run.stderr).toMatchObject({ exitCode: 0, isTimedOut: false })
      expect(run.files).toEqual(basic.files)
      expect(run.stdout.trimEnd().endsWith(basic.says), run.stdout).toBe(true)
      expect(run.session).toMatchObject({ complete: true, incompleteReasons: [] })
      const calls = run.session.turns.map(({ response, delivery }) => [response?.grade, delivery])
      expect(calls).toEqual([1, 2, 3].map(() => ['exact', 'delivered']))
      seen[config.kind] = calls.length
    })
  },
)
