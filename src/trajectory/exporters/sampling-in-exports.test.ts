import { expect, test } from 'vitest'
import { readParquet } from '../../../test/support/read-parquet.ts'
import type { Turn } from '../../model/turn.ts'
import { buildSession } from '../build-session.ts'
import { builders } from '../builders/index.ts'
import { scoreSession } from '../score-session.ts'
import { CallFilter } from '../select-calls.ts'
import { readLines, writeFile } from './exporter.contract.ts'
import { exporters } from './index.ts'

/** The harness requests temperature 1, and the task sets temperature 0.5, top-p 0.9 and seed 7. */
const turn: Turn = {
  id: 'turn_0',
  sessionId: 's',
  index: 0,
  dialect: 'openai-chat',
  startedAt: 1,
  endedAt: 2,
  model: 'policy',
  stream: true,
  request: '{"messages":[{"role":"user","content":"hi"}],"temperature":1}',
  headers: {},
  forced: { temperature: 0.5, top_p: 0.9, seed: 7 },
  sampling: {
    asked: { n: 1, temperature: 1 },
    sent: { n: 1, temperature: 0.5, topP: 0.9, seed: 7 },
    defaults: { temperature: 1, topP: 1, topK: 0, minP: 0 },
    assumed: ['temperature', 'topP', 'topK', 'minP'],
    grammar: { toolChoice: 'required', strictTools: ['f'] },
  },
  steeredBy: ['tool-choice', 'strict-tools'],
  delivery: 'delivered',
  response: {
    id: 'r',
    model: 'served',
    created: 1,
    promptIds: Int32Array.of(1, 2),
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: [{ type: 'text', text: 'hello' }], toolCalls: [] },
        finishReason: 'stop',
        ids: Int32Array.of(3, 4),
        logprobs: Float32Array.of(-0.5, -0.25),
        weightSpans: [
          { from: 0, version: '1' },
          { from: 1, version: '1', newest: '2' },
        ],
      },
    ],
    usage: { promptTokens: 2, completionTokens: 2 },
    grade: 'exact',
    gradeReasons: [],
    weightVersion: '1',
    logprobMode: 'grammar',
  },
}

const facts = {
  sampling: { temperature: 0.5, top_p: 0.9, top_k: 0, min_p: 0, seed: 7 },
  sampling_assumed: ['top_k', 'min_p'],
  distribution_cut: true,
  logprobs_of: 'grammar',
  steered_by: ['tool-choice', 'strict-tools'],
  grammar: { tool_choice: 'required', strict_tools: ['f'] },
  weight_version: '1',
  newest_weight_version: '2',
}

type Row = Record<string, unknown>

async function exportAs(kind: string): Promise<Row> {
  const record = { id: 's', createdAt: 0, origin: {}, turns: [turn], complete: true, incompleteReasons: [] }
  const built = buildSession(record, {
    builder: builders.create(builders.config.parse({ kind: 'prefix_merging' }), {}),
    filter: CallFilter.parse({ allowSteered: ['tool-choice', 'strict-tools'] }),
    weighting: 'tokens',
    reader: {
      readRequest: () => undefined,
      readPrompt: () => ({ messages: [{ role: 'user', content: 'hi' }], tools: [] }),
    },
  })
  const exporter = exporters.create(exporters.config.parse({ kind }), {})
  const file = writeFile(exporter, [scoreSession(built, { session_id: 's', outcome_reward: 1, metadata: {} })])
  const [row] = exporter.extension === 'parquet' ? await readParquet(file) : readLines(file)
  return row as Row
}

test.each(['jsonl', 'slime', 'trl'])('%s: metadata of a call contain its sampling parameters', async (kind) => {
  const { metadata } = (await exportAs(kind)) as { metadata: { calls: Row[]; spans: Row[] } }
  expect(metadata.calls).toMatchObject([facts])
  expect(metadata.spans.slice(-2)).toMatchObject([
    { weight_version: '1' },
    { weight_version: '1', newest_weight_version: '2' },
  ])
})

test('verl: metadata in extra_fields contain the sampling parameters of each call', async () => {
  const { extra_fields: fields } = (await exportAs('verl')) as { extra_fields: { metadata: string } & Row }
  expect((JSON.parse(fields.metadata) as { calls: Row[] }).calls).toMatchObject([facts])
  expect(fields['weight_versions']).toEqual(['1'])
})

test('parquet: columns of a call contain its sampling parameters', async () => {
  const { calls, spans } = (await exportAs('parquet')) as { calls: Row[]; spans: Row[] }
  const { sampling, grammar, ...others } = facts
  expect(calls).toMatchObject([
    { ...others, temperature: sampling.temperature, top_p: sampling.top_p, top_k: 0n, min_p: 0, seed: 7n },
  ])
  expect(calls.map((call) => JSON.parse(call['grammar'] as string) as unknown)).toEqual([grammar])
  expect(calls).toMatchObject([{ logprobs_of: 'grammar' }])
  expect(spans.at(-1)).toMatchObject({ weight_version: '1', newest_weight_version: '2' })
})

test('prime_rl: trained tokens have the temperature that was sent', async () => {
  expect((await exportAs('prime_rl'))['temperatures']).toEqual([1, 1, 0.5, 0.5])
})

test('nemo_gym: parameters are in the request, all others in a field of ours', async () => {
  const row = await exportAs('nemo_gym')
  expect(row['responses_create_params']).toMatchObject({ temperature: 0.5, top_p: 0.9 })
  expect(row['polar']).toMatchObject({ calls: [facts] })
})

test('nemo_rl: extra_env_info contains the sampling parameters of each trained call', async () => {
  expect((await exportAs('nemo_rl'))['extra_env_info']).toMatchObject({ calls: [facts] })
})

test('skyrl: env_metrics contain the sampling parameters of each trained call', async () => {
  expect((await exportAs('skyrl'))['env_metrics']).toMatchObject([{ calls: [facts] }])
})

test('atif: extra of a step contains the sampling parameters of its call', async () => {
  const { steps } = (await exportAs('atif')) as { steps: Row[] }
  expect(steps.at(-1)?.['extra']).toMatchObject(facts)
})
