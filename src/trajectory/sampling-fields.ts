import type { Sample, SampleCall } from '../model/sample.ts'
import type { CallSampling, SentSampling } from '../model/turn-sampling.ts'
import type { Grammar } from '../model/turn.ts'

const NAMES = {
  temperature: 'temperature',
  topP: 'top_p',
  topK: 'top_k',
  minP: 'min_p',
  seed: 'seed',
  maxTokens: 'max_tokens',
  stop: 'stop',
  presencePenalty: 'presence_penalty',
  frequencyPenalty: 'frequency_penalty',
  repetitionPenalty: 'repetition_penalty',
  n: 'n',
} as const satisfies Record<keyof SentSampling, string>

/** Returns the sampling parameters that are set, under the engines' names. */
export function toWireSampling(sampling: SentSampling): Record<string, unknown> {
  return Object.fromEntries(
    (Object.keys(NAMES) as (keyof SentSampling)[]).flatMap((name) =>
      sampling[name] === undefined ? [] : [[NAMES[name], sampling[name]]],
    ),
  )
}

/** Returns parameter names under the engines' names. */
export function toWireNames(names: readonly (keyof SentSampling)[]): string[] {
  return names.map((name) => NAMES[name])
}

/** Returns the restrictions of a request that the engine enforced by a grammar, under the engines' names. */
export function toWireGrammar({ responseFormat, toolChoice, strictTools }: Grammar): Record<string, unknown> {
  return {
    ...(responseFormat === undefined ? {} : { response_format: responseFormat.replace('-', '_') }),
    ...(toolChoice === undefined ? {} : { tool_choice: toolChoice === 'required' ? toolChoice : toolChoice.name }),
    ...(strictTools === undefined ? {} : { strict_tools: strictTools }),
  }
}

/**
 * Returns the sampling of a call for a metadata field: parameters, kind of log probabilities, steering. Omits unknown
 * facts.
 */
export function callFacts({ sampling, logprobMode, steeredBy }: SampleCall): Record<string, unknown> {
  return {
    ...(sampling === undefined ? {} : samplingFacts(sampling)),
    logprobs_of: logprobMode,
    steered_by: steeredBy,
  }
}

function samplingFacts(sampling: CallSampling): Record<string, unknown> {
  return {
    sampling: toWireSampling(sampling),
    ...(sampling.assumed.length === 0 ? {} : { sampling_assumed: toWireNames(sampling.assumed) }),
    ...(sampling.hidden === undefined ? {} : { sampling_unknown: toWireNames(sampling.hidden) }),
    distribution_cut: sampling.isCut,
    ...(sampling.grammar === undefined ? {} : { grammar: toWireGrammar(sampling.grammar) }),
  }
}

/** Returns facts of a sample that a format has no field for. */
export function sampleFacts(sample: Sample): Record<string, unknown> {
  return {
    sample_id: sample.id,
    session_id: sample.sessionId,
    label: sample.label,
    weight: sample.weight,
    group_id: sample.group,
    advantage: sample.advantage,
    calls: trainedCallFacts(sample),
  }
}

/** Returns the sampling of each trained call, for formats whose metadata describes a whole sample. */
export function trainedCallFacts({ calls }: Sample): Record<string, unknown>[] {
  return calls
    .filter(({ isTrained }) => isTrained)
    .map((call) => ({
      turn_id: call.turnId,
      weight_version: call.weightVersion,
      newest_weight_version: call.newestWeightVersion,
      ...callFacts(call),
    }))
}
