import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { Sample } from '../../model/sample.ts'
import { lacksLogprob, logprobsOrZero } from '../../model/sample-facts.ts'
import type { FinishReason } from '../../model/turn.ts'
import { trainedCallFacts } from '../sampling-fields.ts'
import type { ScoredSession } from '../score-session.ts'
import { lineExporter, type Exporter, type ExportStart } from './exporter.ts'

const Config = z.strictObject({ kind: z.literal('skyrl') })

/**
 * SkyRL's GeneratorOutput in the layout of its step-wise training: every line has a single entry, a sample. Concatenating the
 * lists of all lines gives a batch. SkyRL requires a reward and log probabilities, so other samples are left out.
 */
export const skyrl: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create() {
    const open = ({ sessions }: ExportStart) =>
      function* (session: ScoredSession) {
        // The number of the repetition is unknown, so the session's number in the export identifies it.
        const repetition = sessions++
        let before: Sample | undefined
        for (const sample of session.samples()) {
          if (sample.reward === undefined || lacksLogprob(sample)) continue
          if (before !== undefined) yield toOutput(before, repetition, false)
          before = sample
        }
        if (before !== undefined) yield toOutput(before, repetition, true)
      }
    return lineExporter('skyrl', open, ['reward', 'logprobs'])
  },
}

function toOutput(sample: Sample, repetition: number, isLast: boolean): Record<string, unknown> {
  const { ids, mask, logprobs, promptLength } = sample
  return {
    prompt_token_ids: [Array.from(ids.subarray(0, promptLength))],
    response_ids: [Array.from(ids.subarray(promptLength))],
    rewards: [sample.reward],
    loss_masks: [Array.from(mask.subarray(promptLength))],
    stop_reasons: [stopReasonOf(sample.finishReason)],
    rollout_metrics: null,
    rollout_logprobs: [logprobsOrZero(logprobs.subarray(promptLength))],
    trajectory_ids: [{ instance_id: sample.group ?? sample.sessionId, repetition_id: repetition }],
    is_last_step: [isLast],
    env_metrics: [
      {
        sample_id: sample.id,
        session_id: sample.sessionId,
        label: sample.label,
        weight: sample.weight,
        advantage: sample.advantage,
        reward_components: sample.components,
        calls: trainedCallFacts(sample),
      },
    ],
  }
}

/** Engines report a tool call as `stop`, and SkyRL may drop samples with another reason. */
function stopReasonOf(reason: FinishReason): string {
  return reason === 'tool-calls' ? 'stop' : reason
}
