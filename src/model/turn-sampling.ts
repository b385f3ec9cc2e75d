import * as z from 'zod'
import type { Sampling } from './turn.ts'

/** Parameters that decide which distribution a token is drawn from. `topK` of 0 or less means no limit. */
export const DefaultSampling = z.strictObject({
  temperature: z.number().optional(),
  topP: z.number().optional(),
  topK: z.number().optional(),
  minP: z.number().optional(),
})
export type DefaultSampling = z.infer<typeof DefaultSampling>

/** Sampling parameters in the request that reached the engine; an absent parameter was left to the engine. */
export interface SentSampling extends Partial<Sampling> {
  repetitionPenalty?: number
}

/** How one call was sampled: what was sent, and what the engine fills in. */
export interface EngineSampling {
  sent: SentSampling
  /** Values that the engine uses for parameters that were not sent; an absent value is unknown. */
  defaults: DefaultSampling
  /** Names of `defaults` that the engine did not report: the documented defaults of its kind stand in for them. */
  assumed: readonly (keyof DefaultSampling)[]
}

/** The same with what the harness asked for, which the task's own parameters may have replaced. */
export interface TurnSampling extends EngineSampling {
  asked: Partial<Sampling>
}

/** Sampling parameters that were in force for a call. */
export interface CallSampling extends Omit<SentSampling, 'n' | 'stop'> {
  /** Names of parameters above that were neither sent nor reported by the engine: documented defaults. */
  assumed: readonly (keyof DefaultSampling)[]
  /** Whether top-p, top-k, min-p or a temperature of 0 kept some tokens from being drawn. */
  isCut: boolean
}

export function toCallSampling({ sent, defaults, assumed }: EngineSampling): CallSampling {
  const { n: _n, stop: _stop, ...parameters } = sent
  const inForce = { ...defaults, ...parameters }
  return { ...inForce, assumed: assumed.filter((name) => sent[name] === undefined), isCut: isCut(inForce) }
}

/** Below this temperature vLLM and SGLang take the likeliest token. */
const GREEDY_BELOW = 1e-5

function isCut({ temperature = 1, topP = 1, topK = 0, minP = 0 }: DefaultSampling): boolean {
  return temperature < GREEDY_BELOW || topP < 1 || topK > 0 || minP > 0
}
