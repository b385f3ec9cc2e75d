import * as z from 'zod'
import type { Grammar, Sampling } from './turn.ts'

/** Parameters of the sampling distribution. `topK` of 0 or less means no limit. */
export const DefaultSampling = z.strictObject({
  temperature: z.number().optional(),
  topP: z.number().optional(),
  topK: z.number().optional(),
  minP: z.number().optional(),
})
export type DefaultSampling = z.infer<typeof DefaultSampling>

/** A parameter for which the server has a default of its own, with an unknown value. */
export const HiddenDefault = z.enum(['temperature', 'topP', 'topK', 'minP', 'repetitionPenalty'])
export type HiddenDefault = z.infer<typeof HiddenDefault>

/** Sampling parameters sent to the engine. Absent: the engine's default applies. */
export interface SentSampling extends Partial<Sampling> {
  repetitionPenalty?: number
}

/** Sampling of one call: the parameters sent, and the engine's defaults. */
export interface EngineSampling {
  sent: SentSampling
  /** Engine's defaults for parameters that were not sent; absent if unknown. */
  defaults: DefaultSampling
  /** Names of `defaults` that the engine did not report: their values are the documented defaults of its kind. */
  assumed: readonly (keyof DefaultSampling)[]
  /** Parameters that the server sets to unknown values if they are not sent; absent if there are none. */
  hidden?: readonly HiddenDefault[]
  /** Absent if the request contained no restriction that the engine enforces by a grammar. */
  grammar?: Grammar
}

/** Sampling of one call, with the parameters that the harness requested. The task may have replaced them. */
export interface TurnSampling extends EngineSampling {
  asked: Partial<Sampling>
}

/** Effective sampling parameters of a call. */
export interface CallSampling extends Omit<SentSampling, 'n' | 'stop'> {
  /** Names of parameters that were neither sent nor reported by the engine: their values are documented defaults. */
  assumed: readonly (keyof DefaultSampling)[]
  /** Names of parameters that were not sent, and that the server set to unknown values. */
  hidden?: readonly HiddenDefault[]
  /** Whether top-p, top-k, min-p or a temperature of 0 excluded some tokens. */
  isCut: boolean
  grammar?: Grammar
}

export function toCallSampling({ sent, defaults, assumed, hidden, grammar }: EngineSampling): CallSampling {
  const { n: _n, stop: _stop, ...parameters } = sent
  const inForce = { ...defaults, ...parameters }
  const unknown = (hidden ?? []).filter((name) => sent[name] === undefined)
  return {
    ...inForce,
    assumed: assumed.filter((name) => sent[name] === undefined),
    ...(unknown.length === 0 ? {} : { hidden: unknown }),
    isCut: isCut(inForce) || unknown.some((name) => FILTERS.has(name)),
    ...(grammar === undefined ? {} : { grammar }),
  }
}

/** Below this temperature vLLM and SGLang sample greedily. */
const GREEDY_BELOW = 1e-5

const FILTERS: ReadonlySet<HiddenDefault> = new Set(['topP', 'topK', 'minP'])

function isCut({ temperature = 1, topP = 1, topK = 0, minP = 0 }: DefaultSampling): boolean {
  return temperature < GREEDY_BELOW || topP < 1 || topK > 0 || minP > 0
}
