import type { DefaultSampling, EngineSampling } from '../../../model/turn-sampling.ts'
import type { TurnRequest } from '../../../model/turn.ts'
import type { ChatFields } from './chat-fields.ts'
import { sentSampling } from './chat-request.ts'

/**
 * Returns how the engine samples a request. `reported`: defaults that the engine reported to a probe. `documented`: defaults
 * in the documentation of this kind of engine, which a `generation_config.json` on the server may change.
 */
export function toEngineSampling(
  request: TurnRequest,
  { forced, fields }: { forced: Readonly<Record<string, unknown>>; fields: ChatFields },
  documented: DefaultSampling,
  reported: DefaultSampling = {},
): EngineSampling {
  const assumed = (Object.keys(documented) as (keyof DefaultSampling)[]).filter((name) => reported[name] === undefined)
  return { sent: sentSampling(request, forced, fields), defaults: { ...documented, ...reported }, assumed }
}
