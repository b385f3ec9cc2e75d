import type { HiddenDefault } from '../../../model/turn-sampling.ts'

/** Sampling parameters under the names of the engines. */
type Parameters = Readonly<Record<string, number>>

/** Values with which a parameter has no effect. */
const NEUTRAL = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1 } as const

/** At this temperature a filter would exclude almost every sampled token. */
const HOT = 2

const NAMES: readonly { name: HiddenDefault; field: keyof typeof NEUTRAL }[] = [
  { name: 'temperature', field: 'temperature' },
  { name: 'topP', field: 'top_p' },
  { name: 'topK', field: 'top_k' },
  { name: 'minP', field: 'min_p' },
  { name: 'repetitionPenalty', field: 'repetition_penalty' },
]

/**
 * Returns the parameters for which the server has a default that changes the distribution; undefined if this cannot be known.
 * Samples with a fixed seed: an answer changes if and only if its distribution changes, so a parameter that is omitted and
 * the same parameter with its neutral value give the same answer, unless the server has another default. `sample` returns the
 * answers to one request, or undefined if the engine did not answer.
 */
export async function findHiddenDefaults(
  sample: (parameters: Parameters) => Promise<string | undefined>,
): Promise<HiddenDefault[] | undefined> {
  const hot = { ...NEUTRAL, temperature: HOT }
  const neutral = await sample(NEUTRAL)
  const hotNeutral = await sample(hot)
  const controls = [neutral, hotNeutral, await sample({ ...hot, top_k: 20 }), await sample({ ...hot, top_p: 0.8 })]
  const repeated = await sample(NEUTRAL)
  // Without effects of the parameters, or with other answers for the same request, equal answers show nothing.
  const isDecisive = new Set(controls).size === controls.length && neutral !== undefined && repeated === neutral
  if (!isDecisive || controls.includes(undefined)) return undefined
  if ((await sample({})) === neutral && (await sample({ temperature: HOT })) === hotNeutral) return []
  const hidden: HiddenDefault[] = []
  for (const { name, field } of NAMES) {
    // A filter shows at a high temperature; the temperature itself and a penalty at the temperature of the model.
    const isFilter = field !== 'temperature' && field !== 'repetition_penalty'
    const { [field]: _omitted, ...others } = isFilter ? hot : NEUTRAL
    const answer = await sample(others)
    if (answer === undefined) return undefined
    if (answer !== (isFilter ? hotNeutral : neutral)) hidden.push(name)
  }
  return hidden
}
