import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import fc from 'fast-check'
import { beforeAll, expect, test } from 'vitest'
import { lacksLogprob, logprobsOrZero } from '../../src/model/sample-facts.ts'
import { anySession, relabelled, writeFile } from '../../src/trajectory/exporters/exporter.contract.ts'
import { exporters } from '../../src/trajectory/exporters/index.ts'
import type { ScoredSession } from '../../src/trajectory/score-session.ts'
import { pythonEnvironment } from '../support/python-environment.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const pipOptions = ['--no-deps', '--ignore-requires-python']
const { python, install } = pythonEnvironment('export-schemas', 'export-requirements.txt', pipOptions)

let missing: string | undefined
beforeAll(() => {
  missing = install()
}, 900_000)

const formats = {
  atif: { kind: 'atif', schemaVersion: 'ATIF-v1.8', promptIds: true },
  nemo_gym: { kind: 'nemo_gym', agent: 'polar' },
  openai_sft: { kind: 'openai_sft', reasoning: 'field', content: 'sent', tools: 'list' },
  prime_rl: { kind: 'prime_rl', envName: 'polar', layout: 'array' },
} as const

test('the data models of the consumers read the exported samples from every file', ({ skip }) => {
  if (missing !== undefined) skip(`the consumers’ packages cannot be installed here: ${missing}`)
  const sessions = fc
    .sample(anySession(), { numRuns: 300, seed: 7 })
    .map((session, i) =>
      i % 3 === 0 ? relabelled(session, (call) => (call % 2 === 1 ? 'subagent' : 'main')) : session,
    )
  const folder = mkdtempSync(join(tmpdir(), 'polar-export-'))
  try {
    for (const [name, config] of Object.entries(formats)) {
      writeFileSync(join(folder, `${name}.jsonl`), writeFile(exporters.create(config, {}), sessions))
    }
    const run = spawnSync(python, [join(root, 'test/support/export_schemas.py'), folder], {
      encoding: 'utf8',
      maxBuffer: 2 ** 28,
    })
    expect(run.status, run.stderr.slice(-4000)).toBe(0)
    expect(JSON.parse(run.stdout)).toEqual(expected(sessions))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})

function expected(sessions: readonly ScoredSession[]): Record<keyof typeof formats, unknown[]> {
  const samples = sessions.flatMap((session) => [...session.samples()])
  const certain = samples.filter((sample) => !lacksLogprob(sample))
  return {
    atif: sessions.flatMap((session) => {
      const calls = sampledIn(session)
      return calls.length === 0 ? [] : [calls]
    }),
    nemo_gym: certain
      .filter(({ reward }) => reward !== undefined)
      .map(({ ids, calls }) =>
        calls.filter(({ isTrained }) => isTrained).map(({ from, to }) => [...ids.subarray(from, to)]),
      ),
    openai_sft: samples.map((sample) => {
      const { prompt, response } = sample.messages()
      return [...prompt, ...response].map((message) => (message as { role: string }).role)
    }),
    prime_rl: certain.map(({ ids, mask, logprobs }) => [[...ids], [...mask], logprobsOrZero(logprobs)]),
  }
}

/** Returns each call once, even if several samples contain it. */
function sampledIn(session: ScoredSession): unknown[] {
  const calls = new Set([...session.samples()].flatMap((sample) => sample.calls.map(({ key }) => key)))
  return session.built.graph.nodes
    .filter(({ key }) => calls.has(key))
    .map(({ turn, choice }) => [turn.id, [...choice.ids]])
}
