import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { Sample } from '../../model/sample.ts'
import type { FinishReason } from '../../model/turn.ts'
import { groupNumber, maskedLogprobs, weightVersionsOf } from '../sample-fields.ts'
import { traceMetadata } from '../to-trace.ts'
import type { ScoredSession } from '../score-session.ts'
import { lineExporter, type Exporter, type ExportStart } from './exporter.ts'

const Config = z.strictObject({ kind: z.literal('slime') })

/**
 * The input of slime's and miles' `Sample.from_dict`, one per line. `response` keeps its default: the text is in the messages,
 * and slime trains on `tokens`. https://github.com/THUDM/slime/blob/main/slime/utils/types.py
 */
export const slime: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create() {
    const open = ({ sessions, samples }: ExportStart) =>
      function* (session: ScoredSession) {
        for (const sample of session.samples()) yield toSlime(sample, { index: samples++, rolloutId: sessions })
        sessions += 1
      }
    return lineExporter('slime', open)
  },
}

function toSlime(sample: Sample, { index, rolloutId }: { index: number; rolloutId: number }): Record<string, unknown> {
  const { promptLength, ids, mask } = sample
  const messages = sample.messages()
  const logprobs = maskedLogprobs(sample)
  return {
    group_index: sample.group === undefined ? null : groupNumber(sample.group),
    index,
    // A session may have several samples; slime counts samples with the same id once.
    rollout_id: rolloutId,
    session_id: sample.sessionId,
    prompt: messages.prompt,
    tokens: Array.from(ids),
    response_length: ids.length - promptLength,
    reward: sample.reward ?? null,
    loss_mask: Array.from(mask.subarray(promptLength)),
    rollout_log_probs: logprobs === undefined ? null : Array.from(logprobs),
    weight_versions: weightVersionsOf(sample),
    status: statusOf(sample.finishReason),
    metadata: { ...traceMetadata(sample, messages), response_messages: messages.response, tools: messages.tools },
  }
}

function statusOf(reason: FinishReason): 'completed' | 'truncated' | 'aborted' | 'failed' {
  switch (reason) {
    case 'stop':
    case 'tool-calls':
      return 'completed'
    case 'length':
      return 'truncated'
    case 'abort':
    case 'cut':
      return 'aborted'
    case 'content-filter':
    case 'other':
      return 'failed'
  }
}
