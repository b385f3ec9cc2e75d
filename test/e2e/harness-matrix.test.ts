import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { loadTokenizer, type Tokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'
import { findHarness } from '../../src/node/harness/find-harness.ts'
import { harnesses } from '../../src/node/harness/presets/index.ts'
import { whyNoHarness } from '../support/installed-harness.ts'
import { factsOf, type RunFacts } from '../support/harness-facts.ts'
import { runHarness, type HarnessRun } from '../support/harness-run.ts'
import { scenarios, type ScenarioName } from '../support/harness-scenarios.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))

interface Expectation {
  calls: number
  /** Absent: 0. */
  exitCode?: number
  /** Calls whose history does not continue that of the previous call. Absent: 0. */
  edited?: number
}

/** The behaviour of each CLI with the API of its own provider. */
const expected: Readonly<Record<string, Readonly<Partial<Record<ScenarioName, Expectation>>>>> = {
  codex: {
    basic: { calls: 3 },
    parallel: { calls: 3 },
    image: { calls: 2 },
    sub: { calls: 5 },
    empty: { calls: 1 },
    badargs: { calls: 3 },
    long: { calls: 13 },
    prompt: { calls: 1 },
  },
  claude_code: {
    basic: { calls: 3 },
    parallel: { calls: 3 },
    image: { calls: 2 },
    sub: { calls: 5 },
    // Sends one more request, with a note in the first message.
    empty: { calls: 2, edited: 1 },
    badargs: { calls: 3 },
    long: { calls: 13 },
    prompt: { calls: 1 },
  },
  gemini_cli: {
    basic: { calls: 3 },
    parallel: { calls: 3 },
    image: { calls: 2 },
    sub: { calls: 4 },
    // Sends three more requests, with a note in the first message.
    empty: { calls: 4, edited: 1 },
    badargs: { calls: 3 },
    long: { calls: 13 },
    prompt: { calls: 1 },
  },
  qwen_code: {
    basic: { calls: 3 },
    parallel: { calls: 3 },
    image: { calls: 2 },
    sub: { calls: 5 },
    empty: { calls: 5, exitCode: 1 },
    // Sends one more request before it repairs the arguments.
    badargs: { calls: 4 },
    long: { calls: 13 },
    prompt: { calls: 1 },
  },
  opencode: {
    basic: { calls: 3 },
    parallel: { calls: 3 },
    image: { calls: 2 },
    sub: { calls: 4 },
    empty: { calls: 1 },
    badargs: { calls: 3 },
    long: { calls: 13 },
    prompt: { calls: 1 },
  },
  pi: {
    basic: { calls: 3 },
    parallel: { calls: 3 },
    image: { calls: 2 },
    empty: { calls: 1 },
    badargs: { calls: 3 },
    long: { calls: 13 },
    prompt: { calls: 1 },
  },
  openhands: {
    basic: { calls: 3 },
    parallel: { calls: 3 },
    image: { calls: 2 },
    // Sends two more requests, then reports that it is stuck.
    empty: { calls: 3, exitCode: 1 },
    badargs: { calls: 3 },
    long: { calls: 13 },
    prompt: { calls: 1 },
  },
}

/** CLIs that print the last answer and nothing else. */
const printsOnlyAnswer: readonly string[] = ['openhands']

let scratch: string
let tokenizer: Tokenizer
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-matrix-'))
  tokenizer = await loadTokenizer(embeddedModelFolder())
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

describe.each(harnesses.filter(({ name }) => name in expected))(
  '$title, unmodified, through polar record --harness $name',
  (harness) => {
    const playable = scenarios.filter(({ childSteps }) => childSteps === undefined || harness.hasSubAgents)
    const facts: Partial<Record<ScenarioName, RunFacts>> = {}

    /** Writes the input of docs/harness-matrix.md if all scenarios passed. */
    afterAll(async () => {
      if (playable.some(({ name }) => facts[name] === undefined)) return
      const folder = join(root, '.polar', 'harness-matrix')
      await mkdir(folder, { recursive: true })
      const record = { name: harness.name, version: harness.package.version, scenarios: facts }
      await writeFile(join(folder, `${harness.name}.json`), `${JSON.stringify(record, null, 2)}\n`)
    })

    test.for(playable)('$name', async (scenario, context) => {
      const folders = harnessPlaces(undefined, process.env)
      if ((await findHarness(harness, folders)) === undefined) {
        context.skip(whyNoHarness(harness))
      }
      const run = await runHarness(harness, scenario, { scratch, harnessDir: folders.dir })
      const { calls, exitCode = 0, edited = 0 } = expected[harness.name]?.[scenario.name] ?? { calls: NaN }
      const seen = factsOf(run)

      expect(seen, run.stderr).toMatchObject({ exitCode, calls, exactCalls: calls })
      expectComplete(run)
      expect(seen.prompt).not.toBe('changed')
      // Every call that is not edited continues the history of the previous call, with all arguments as sampled.
      expect(seen.history.edited).toBe(edited)
      expect(seen.arguments.changed).toBe(0)
      for (const [file, text] of Object.entries(scenario.files)) {
        expect(await readFile(join(run.cwd, file), 'utf8').catch(() => undefined), file).toBe(text)
      }
      if (scenario.says === '' || printsOnlyAnswer.includes(harness.name)) expect(run.stdout.trim()).toBe(scenario.says)
      else expect(run.stdout.trimEnd().endsWith(scenario.says), run.stdout).toBe(true)
      if (scenario.images) expectImageRead(run, seen)
      expectFaithful(seen)
      if (scenario.name === 'long') expect(seen.trajectory.merged.main).toEqual({ calls, rows: 1 })
      facts[scenario.name] = seen
    })
  },
)

/** Asserts that every sampled token is either trained, in the context that the engine read, or excluded. */
function expectFaithful({ trajectory: { merged } }: RunFacts): void {
  expect(merged.mismatchedTokens).toBe(0)
  expect(merged.tokens.trained + merged.tokens.excluded).toBe(merged.tokens.sampled)
  expect(merged.tokens.trained).toBeGreaterThan(0)
}

/** Asserts that every call is recorded, equals the log of the engine and was delivered. */
function expectComplete({ session, engine }: HarnessRun): void {
  expect(session).toMatchObject({ complete: true, incompleteReasons: [] })
  expect(session.turns.length).toBe(engine.length)
  for (const { delivery, failure, response } of session.turns) {
    expect({ delivery, failure }).toEqual({ delivery: 'delivered', failure: undefined })
    const call = engine.find(({ request_id }) => request_id === response?.id)
    expect(Array.from(response?.promptIds ?? [])).toEqual(call?.prompt_token_ids)
    expect(Array.from(response?.choices[0]?.ids ?? [])).toEqual(call?.choices[0]?.token_ids)
    expect(Array.from(response?.choices[0]?.logprobs ?? [])).toEqual(call?.choices[0]?.logprobs.map(Math.fround))
  }
}

/** Asserts that the request contains the image and that the engine has read it. */
function expectImageRead({ session }: HarnessRun, seen: RunFacts): void {
  expect(seen.images).toBe(1)
  const prompt = tokenizer.decode(session.turns.at(-1)?.response?.promptIds ?? [], { skipSpecialTokens: false })
  expect(prompt).toMatch(/<image [0-9a-f]{16}>/)
}
