import assert from 'node:assert/strict'
import * as fc from 'fast-check'
import { describe, test } from 'vitest'
import {
  assertCallsBeforeResults,
  expectedMessages,
  expectedSplicedMessages,
  type ExpectedMessage,
} from '../../test/support/message-oracle.ts'
import { trialOf, type OpenTrial } from '../../test/support/random-sessions/trial.ts'
import { toyWorld } from '../../test/support/random-sessions/world.ts'
import { readParquet } from '../../test/support/read-parquet.ts'
import {
  assertRowMessages,
  isRefusedByShareGpt,
  sampleIdOf,
  TEXT_FORMATS,
  type Row,
  type TextFormat,
} from '../../test/support/row-messages.ts'
import { lacksLogprob } from '../model/sample-facts.ts'
import type { Sample } from '../model/sample.ts'
import type { Turn } from '../model/turn.ts'
import { buildSession } from './build-session.ts'
import { builders } from './builders/index.ts'
import { readLines, writeFile } from './exporters/exporter.contract.ts'
import { exporters } from './exporters/index.ts'
import { scoreSession, type ScoredSession } from './score-session.ts'
import { runs } from '../../test/support/runs.ts'

const BUILDERS = {
  per_request: { kind: 'per_request' },
  prefix_merging: { kind: 'prefix_merging' },
  prefix_tree: { kind: 'prefix_tree' },
  splice: { kind: 'prefix_merging', splice: true },
} as const
type BuilderName = keyof typeof BUILDERS

function sessionOf({ session, filter, weighting, reader }: OpenTrial, name: BuilderName): ScoredSession {
  const builder = builders.create(builders.config.parse(BUILDERS[name]), {})
  const built = buildSession(session, { builder, filter, weighting, reader })
  return scoreSession(built, { session_id: session.id, outcome_reward: 1, metadata: {} })
}

/** Reads the messages from the recorded calls, by the ids of the sample. */
function expectedOf(sample: Sample, turns: readonly Turn[]): ExpectedMessage[] {
  const calls = sample.calls.map(({ turnId, choice, from, to, isTrained }) => {
    const found = turns
      .filter(({ id }) => id === turnId)
      .map((turn) => ({ turn, choice: turn.response?.choices.find(({ index }) => index === choice) }))
      // A turn may have a second, truncated record; the number of tokens in the sample identifies the right one.
      .find((candidate) => candidate.choice?.ids.length === to - from)
    assert(found?.choice !== undefined, `${turnId} was never recorded`)
    return { turn: found.turn, choice: found.choice, isTrained }
  })
  const read = sample.ids.subarray(0, sample.calls.at(-1)?.from)
  const isLiteral = read.join() === calls.at(-1)?.turn.response?.promptIds.join()
  return isLiteral ? expectedMessages(calls) : expectedSplicedMessages(calls)
}

async function readRows(format: TextFormat, session: ScoredSession): Promise<Row[]> {
  const file = writeFile(exporters.create(exporters.config.parse({ kind: format }), {}), [session])
  return format === 'parquet' || format === 'verl' ? readParquet(file) : (readLines(file) as Row[])
}

function isWritten(format: TextFormat, sample: Sample, expected: readonly ExpectedMessage[]): boolean {
  if (format === 'nemo_gym') return !lacksLogprob(sample)
  return format !== 'sharegpt' || !isRefusedByShareGpt(expected)
}

describe.each(Object.keys(BUILDERS) as BuilderName[])('%s', (name) => {
  test.each(TEXT_FORMATS)(
    '%s rows hold all messages of the recorded requests in order, and mark the trained ones',
    async (format) => {
      await fc.assert(
        fc.asyncProperty(trialOf(toyWorld, 10), async (trial) => {
          const session = sessionOf(trial, name)
          const wanted = [...session.samples()]
            .map((sample) => ({ sample, expected: expectedOf(sample, trial.session.turns) }))
            .filter(({ sample, expected }) => isWritten(format, sample, expected))
          const rows = await readRows(format, session)
          assert.equal(rows.length, wanted.length, 'the number of rows')
          for (const [i, { sample, expected }] of wanted.entries()) {
            const row = rows[i] as Row
            assert.equal(sampleIdOf(format, row) ?? sample.id, sample.id)
            assertCallsBeforeResults(
              expected.map(({ message }) => message),
              sample.id,
            )
            assertRowMessages(format, row, expected)
          }
        }),
        { numRuns: runs(40) },
      )
    },
  )
})
