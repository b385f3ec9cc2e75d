import type { Sample, SampleCall, SampleMessages, Span } from '../model/sample.ts'
import type { Trace } from '../model/trajectory.ts'
import type { FinishReason } from '../model/turn.ts'
import { callFacts } from './sampling-fields.ts'

/** Returns a sample under NVIDIA Polar's field names. Other facts are in `metadata`. */
export function toTrace(sample: Sample): Trace {
  const { promptLength } = sample
  const messages = sample.messages()
  return {
    prompt_ids: Array.from(sample.ids.subarray(0, promptLength)),
    response_ids: Array.from(sample.ids.subarray(promptLength)),
    loss_mask: Array.from(sample.mask.subarray(promptLength)) as (0 | 1)[],
    prompt_messages: [...messages.prompt],
    response_messages: [...messages.response],
    tools: messages.tools === null ? null : [...messages.tools],
    finish_reason: wireFinishReason(sample.finishReason),
    response_logprobs: responseLogprobs(sample),
    reward: sample.reward ?? null,
    metadata: traceMetadata(sample, messages),
  }
}

/**
 * Returns 0 where the mask is 0: NVIDIA Polar's models reject null there. Returns null if a trained token has no log
 * probability, so that a trainer rejects the trace: a 0 would mean a probability of one.
 */
function responseLogprobs({ promptLength, logprobs, mask }: Sample): number[] | null {
  const values = Array.from(logprobs.subarray(promptLength), (value, at) => (mask[promptLength + at] === 1 ? value : 0))
  return values.every(Number.isFinite) ? values : null
}

export function wireFinishReason(reason: FinishReason): string {
  return reason === 'tool-calls' ? 'tool_calls' : reason
}

export function numberOrNull(value: number): number | null {
  return Number.isFinite(value) ? value : null
}

/** Returns the facts of a sample besides its tokens, messages and reward. */
export function traceMetadata(sample: Sample, { answers }: SampleMessages): Record<string, unknown> {
  return {
    sample_id: sample.id,
    session_id: sample.sessionId,
    builder: sample.builder,
    label: sample.label,
    weight: sample.weight,
    group_id: sample.group,
    advantage: sample.advantage,
    reward_components: sample.components,
    shared_with: sample.shared?.with,
    shared_length: sample.shared?.length,
    mismatched_tokens: sample.mismatchedTokens,
    calls: sample.calls.map((call, i) => ({
      ...toWireCall(call, answers[i]),
      weight_version: call.weightVersion ?? null,
      ...callFacts(call),
      started_at: call.startedAt,
      ended_at: call.endedAt ?? null,
      parser_failure: call.hasParserFailure,
    })),
    spans: sample.spans().map(toWireSpan),
  }
}

export function toWireCall(call: SampleCall, responseMessage: number | undefined): Record<string, unknown> {
  return {
    turn_id: call.turnId,
    choice: call.choice,
    label: call.label,
    from: call.from,
    to: call.to,
    trained: call.isTrained,
    response_message: responseMessage,
    finish_reason: wireFinishReason(call.finishReason),
    grade: call.grade,
    weight_version: call.weightVersion,
    newest_weight_version: call.newestWeightVersion,
  }
}

export function toWireSpan({
  from,
  provenance,
  call,
  weightVersion,
  newestWeightVersion,
}: Span): Record<string, unknown> {
  return { from, provenance, call, weight_version: weightVersion, newest_weight_version: newestWeightVersion }
}
