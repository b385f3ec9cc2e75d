import type { DefaultSampling, EngineSampling } from '../../../model/turn-sampling.ts'
import { grammarOf } from '../../../model/steering.ts'
import type { LogprobMode, TurnRequest } from '../../../model/turn.ts'
import type { Capabilities } from '../upstream.ts'
import type { ChatFields } from './chat-fields.ts'
import { sentSampling } from './chat-request.ts'

/**
 * Returns how the engine samples a request. `documented`: defaults in the documentation of this kind of engine, which a
 * `generation_config.json` on the server may change, unless a probe found other defaults.
 */
export function toEngineSampling(
  request: TurnRequest,
  { forced, fields }: { forced: Readonly<Record<string, unknown>>; fields: ChatFields },
  documented: DefaultSampling,
  {
    defaultSampling: reported = {},
    hiddenDefaults: hidden = [],
  }: Pick<Capabilities, 'defaultSampling' | 'hiddenDefaults'>,
): EngineSampling {
  const known = Object.entries(documented).filter(([name]) => !(hidden as readonly string[]).includes(name))
  const assumed = known.map(([name]) => name as keyof DefaultSampling).filter((name) => reported[name] === undefined)
  const grammar = grammarOf(request)
  return {
    sent: sentSampling(request, forced, fields),
    defaults: { ...Object.fromEntries(known), ...reported },
    assumed,
    ...(hidden.length === 0 ? {} : { hidden }),
    ...(grammar === undefined ? {} : { grammar }),
  }
}

/**
 * Returns the kind of the log probabilities of an answer; undefined if unknown. vLLM and SGLang mask the logits with the
 * grammar before they compute log probabilities, in every mode, so an engine counts as masking unless it is known to compute
 * them from the logits of the model (`isFree`).
 */
export function logprobModeOf(
  request: TurnRequest,
  { logprobs: mode }: Pick<Capabilities, 'logprobs'>,
  { isFree = false } = {},
): LogprobMode | undefined {
  if (!isFree && grammarOf(request) !== undefined) return 'grammar'
  return mode === 'unknown' ? undefined : mode
}
