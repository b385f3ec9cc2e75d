import * as z from 'zod'
import { createParquetWriter } from '../../lib/parquet/parquet-writer.ts'
import type { ParquetColumns } from '../../lib/parquet/schema.ts'
import type { Plug } from '../../lib/plug.ts'
import type { Sample } from '../../model/sample.ts'
import { maskedLogprobs, weightVersionsOf } from '../sample-fields.ts'
import { traceMetadata, wireFinishReason } from '../to-trace.ts'
import type { Exporter } from './exporter.ts'

const Config = z.strictObject({ kind: z.literal('verl') })

/** Registered name of the agent loop that returns the recorded rows. */
const AGENT_NAME = 'polar_replay'

const columns = {
  // Columns of RLHFDataset.
  data_source: 'string',
  agent_name: 'string',
  prompt: { list: { struct: { role: 'string', content: 'string' } } },
  ability: 'string',
  reward_model: { struct: { style: 'string', ground_truth: 'string' } },
  extra_info: {
    struct: { index: 'int64', need_tools_kwargs: 'boolean', session_id: 'string', group_id: 'string' },
  },
  // Fields of AgentLoopOutput.
  prompt_ids: { list: 'int32' },
  response_ids: { list: 'int32' },
  response_mask: { list: 'uint8' },
  response_logprobs: { list: 'float' },
  reward_score: 'double',
  num_turns: 'int32',
  metrics: { struct: { generate_sequences: 'double' } },
  extra_fields: {
    struct: {
      sample_id: 'string',
      session_id: 'string',
      group_id: 'string',
      row_weight: 'double',
      advantage: 'double',
      finish_reason: 'string',
      weight_versions: { list: 'string' },
      metadata: 'string',
    },
  },
} as const satisfies ParquetColumns

/**
 * verl's dataset columns and the fields of the recorded `AgentLoopOutput`. verl's datasets are Parquet, and an agent loop
 * receives the columns of a row as keyword arguments. Unknown values with a default in verl are left out.
 * https://github.com/verl-project/verl/blob/main/verl/experimental/agent_loop/agent_loop.py
 */
export const verl: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: () => ({
    name: 'verl',
    extension: 'parquet',
    isAppendable: false,
    open(start = { sessions: 0, samples: 0 }) {
      const writer = createParquetWriter(columns)
      let index = start.samples
      return {
        *add(session) {
          for (const sample of session.samples()) {
            yield* writer.add(toRow(sample, index))
            index += 1
          }
        },
        end: () => writer.end(),
      }
    },
  }),
}

function toRow(sample: Sample, index: number): Record<keyof typeof columns, unknown> {
  const { promptLength, ids, mask } = sample
  const messages = sample.messages()
  const spoken = [...messages.prompt, ...messages.response].filter((message) => roleOf(message) !== 'system')
  return {
    data_source: 'polar',
    agent_name: AGENT_NAME,
    prompt: messages.prompt.map((message) => ({ role: roleOf(message), content: textOf(message) })),
    ability: undefined,
    reward_model: { style: 'recorded', ground_truth: undefined },
    extra_info: { index, need_tools_kwargs: false, session_id: sample.sessionId, group_id: sample.group },
    prompt_ids: ids.subarray(0, promptLength),
    response_ids: ids.subarray(promptLength),
    response_mask: mask.subarray(promptLength),
    response_logprobs: maskedLogprobs(sample),
    reward_score: sample.reward,
    num_turns: spoken.length,
    metrics: { generate_sequences: generationSeconds(sample) },
    extra_fields: {
      sample_id: sample.id,
      session_id: sample.sessionId,
      group_id: sample.group,
      row_weight: sample.weight,
      advantage: sample.advantage,
      finish_reason: wireFinishReason(sample.finishReason),
      weight_versions: weightVersionsOf(sample),
      metadata: JSON.stringify({ ...traceMetadata(sample, messages), messages }),
    },
  }
}

function roleOf(message: unknown): string | undefined {
  const role = (message as { role?: unknown } | null)?.role
  return typeof role === 'string' ? role : undefined
}

/** Returns the text of a message: verl's prompts are text. `extra_fields.metadata` contains the whole messages. */
function textOf(message: unknown): string {
  const content = (message as { content?: unknown } | null)?.content
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return ''
  return content
    .map((part: unknown) => (part as { text?: unknown } | null)?.text)
    .filter((text) => typeof text === 'string')
    .join('')
}

/** Returns the total duration of the trained calls; undefined if one has no recorded end. */
function generationSeconds({ calls }: Sample): number | undefined {
  let sum = 0
  for (const { isTrained, startedAt, endedAt } of calls) {
    if (!isTrained) continue
    if (endedAt === undefined) return undefined
    sum += endedAt - startedAt
  }
  return sum / 1000
}
