import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { Sample } from '../../model/sample.ts'
import { groupNumber, maskedLogprobs, oldestVersion } from '../sample-fields.ts'
import { traceMetadata } from '../to-trace.ts'
import { sampleExporter, type Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('trl'),
  modelVersion: z
    .int()
    .nonnegative()
    .optional()
    .describe('model_version of samples whose weight version is not a number; default: null'),
})
type Config = z.infer<typeof Config>

/**
 * The result of a `rollout_func` of TRL's GRPOTrainer, one completion per line; reward functions receive the other fields.
 * Concatenating prompt and completion gives the fields of AsyncGRPO's `RolloutSample`, so ids are not written twice.
 * https://github.com/huggingface/trl/blob/main/trl/experimental/async_grpo/async_rollout_worker.py
 */
export const trl: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: (config) => sampleExporter('trl', (sample) => toTrl(sample, config)),
}

function toTrl(sample: Sample, config: Config): Record<string, unknown> {
  const { promptLength, ids, mask } = sample
  const messages = sample.messages()
  const logprobs = maskedLogprobs(sample)
  return {
    prompt: messages.prompt,
    completion: messages.response,
    tools: messages.tools,
    prompt_ids: Array.from(ids.subarray(0, promptLength)),
    completion_ids: Array.from(ids.subarray(promptLength)),
    env_mask: Array.from(mask.subarray(promptLength)),
    logprobs: logprobs === undefined ? null : Array.from(logprobs),
    reward: sample.reward ?? null,
    advantage: sample.advantage ?? null,
    // Async GRPO subtracts this number from its own version to drop old samples, so it does not accept null.
    model_version: oldestVersion(sample) ?? config.modelVersion ?? null,
    group_id: sample.group === undefined ? null : groupNumber(sample.group),
    metrics: sample.components ?? {},
    metadata: traceMetadata(sample, messages),
  }
}
