import * as z from 'zod'
import { createParquetWriter } from '../../lib/parquet/parquet-writer.ts'
import type { ParquetColumns } from '../../lib/parquet/schema.ts'
import type { Plug } from '../../lib/plug.ts'
import type { Sample, SampleCall } from '../../model/sample.ts'
import { weightVersionsOf } from '../sample-fields.ts'
import { toWireGrammar, toWireNames } from '../sampling-fields.ts'
import { toWireCall, toWireSpan, wireFinishReason } from '../to-trace.ts'
import type { Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('parquet'),
  sharePrefixes: z
    .boolean()
    .default(false)
    .describe('Omit the first shared_length tokens, which the row shared_with contains'),
})

const columns = {
  sample_id: 'string',
  session_id: 'string',
  group_id: 'string',
  builder: 'string',
  label: 'string',
  finish_reason: 'string',
  input_ids: { list: 'int32' },
  prompt_length: 'int32',
  loss_mask: { list: 'uint8' },
  // NaN if the policy did not sample the token or the engine returned no log probability.
  logprobs: { list: 'float' },
  spans: {
    list: {
      struct: {
        from: 'int32',
        provenance: 'string',
        call: 'string',
        weight_version: 'string',
        newest_weight_version: 'string',
      },
    },
  },
  weight_versions: { list: 'string' },
  row_weight: 'double',
  reward: 'double',
  advantage: 'double',
  reward_components: 'string',
  shared_with: 'string',
  shared_length: 'int32',
  mismatched_tokens: 'int32',
  calls: {
    list: {
      struct: {
        turn_id: 'string',
        choice: 'int32',
        label: 'string',
        from: 'int32',
        to: 'int32',
        trained: 'boolean',
        response_message: 'int32',
        finish_reason: 'string',
        grade: 'string',
        weight_version: 'string',
        newest_weight_version: 'string',
        temperature: 'double',
        top_p: 'double',
        top_k: 'int64',
        min_p: 'double',
        seed: 'int64',
        sampling_assumed: { list: 'string' },
        sampling_unknown: { list: 'string' },
        distribution_cut: 'boolean',
        logprobs_of: 'string',
        steered_by: { list: 'string' },
        // JSON: the restrictions that the engine enforced by a grammar.
        grammar: 'string',
        started_at: 'int64',
        ended_at: 'int64',
        parser_failure: 'boolean',
      },
    },
  },
  // JSON: messages of different harnesses have no common columns.
  prompt_messages: 'string',
  response_messages: 'string',
  tools: 'string',
} as const satisfies ParquetColumns

/**
 * One row per sample, all arrays as long as `input_ids`, for any reader of Parquet. Positions count from the start of the
 * sample, also if its shared prefix is omitted.
 */
export const parquet: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: ({ sharePrefixes }) => ({
    name: 'parquet',
    extension: 'parquet',
    isAppendable: false,
    open() {
      const writer = createParquetWriter(columns)
      return {
        *add(session) {
          for (const sample of session.samples()) yield* writer.add(toRow(sample, sharePrefixes))
        },
        end: () => writer.end(),
      }
    },
  }),
}

function toRow(sample: Sample, sharePrefixes: boolean): Record<keyof typeof columns, unknown> {
  const messages = sample.messages()
  const from = sharePrefixes ? (sample.shared?.length ?? 0) : 0
  return {
    sample_id: sample.id,
    session_id: sample.sessionId,
    group_id: sample.group,
    builder: sample.builder,
    label: sample.label,
    finish_reason: wireFinishReason(sample.finishReason),
    input_ids: sample.ids.subarray(from),
    prompt_length: sample.promptLength,
    loss_mask: sample.mask.subarray(from),
    logprobs: sample.logprobs.subarray(from),
    spans: sample.spans().map(toWireSpan),
    weight_versions: weightVersionsOf(sample),
    row_weight: sample.weight,
    reward: sample.reward,
    advantage: sample.advantage,
    reward_components: sample.components === undefined ? undefined : JSON.stringify(sample.components),
    shared_with: sample.shared?.with,
    shared_length: sample.shared?.length,
    mismatched_tokens: sample.mismatchedTokens,
    calls: sample.calls.map((call, i) => toCallRow(call, messages.answers[i])),
    prompt_messages: JSON.stringify(messages.prompt),
    response_messages: JSON.stringify(messages.response),
    tools: messages.tools === null ? undefined : JSON.stringify(messages.tools),
  }
}

function toCallRow(call: SampleCall, responseMessage: number | undefined): Record<string, unknown> {
  const { sampling } = call
  return {
    ...toWireCall(call, responseMessage),
    temperature: sampling?.temperature,
    top_p: sampling?.topP,
    top_k: integerOf(sampling?.topK),
    min_p: sampling?.minP,
    seed: integerOf(sampling?.seed),
    sampling_assumed: sampling === undefined ? undefined : toWireNames(sampling.assumed),
    sampling_unknown: sampling === undefined ? undefined : toWireNames(sampling.hidden ?? []),
    distribution_cut: sampling?.isCut,
    logprobs_of: call.logprobMode,
    steered_by: call.steeredBy ?? [],
    grammar: sampling?.grammar === undefined ? undefined : JSON.stringify(toWireGrammar(sampling.grammar)),
    started_at: call.startedAt,
    ended_at: call.endedAt,
    parser_failure: call.hasParserFailure,
  }
}

/** Undefined for a number that is not an integer: harnesses may send any number. */
function integerOf(value: number | undefined): number | undefined {
  return Number.isSafeInteger(value) ? value : undefined
}
