import * as z from 'zod'
import { parseJsonObject } from '../../lib/json/json-text.ts'
import type { Plug } from '../../lib/plug.ts'
import type { Sample, SampleCall } from '../../model/sample.ts'
import { lacksLogprob, logprobsOrZero } from '../../model/sample-facts.ts'
import type { Turn } from '../../model/turn.ts'
import type { ScoredSession } from '../score-session.ts'
import { lineExporter, type Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('prime_rl'),
  envName: z.string().default('polar').describe('env_name of every row'),
  layout: z
    .enum(['object', 'array'])
    .default('object')
    .describe('object: by field name, for TrainingSample(**row); array: by position, for msgspec.json.decode'),
  temperature: z
    .number()
    .nonnegative()
    .optional()
    .describe('Temperature of calls without a temperature in the request or from the engine; default 1'),
})
type Config = z.infer<typeof Config>

/**
 * prime-rl's TrainingSample, one row per sample, without unknown fields. `advantages` is null if none was computed; there is
 * no field for a reward. Every row has `temperatures`, because prime-rl's trainer rejects rows without them. Samples without
 * a log probability of every trained token are left out.
 */
export const primeRl: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create(config) {
    function* toRows(session: ScoredSession) {
      const temperatureOf = temperatureReader(session, config)
      for (const sample of session.samples()) {
        if (lacksLogprob(sample)) continue
        const row = toTrainingSample(sample, temperatureOf, config)
        yield config.layout === 'object' ? row : toArray(row)
      }
    }
    return lineExporter('prime_rl', () => toRows, ['logprobs'])
  },
}

interface TrainingSample {
  token_ids: number[]
  mask: boolean[]
  logprobs: number[]
  temperatures: number[]
  env_name: string
  advantages: number[] | null
}

type TemperatureOf = (call: SampleCall) => number

function toTrainingSample(sample: Sample, temperatureOf: TemperatureOf, { envName }: Config): TrainingSample {
  const { advantage } = sample
  return {
    token_ids: Array.from(sample.ids),
    mask: Array.from(sample.mask, (trained) => trained === 1),
    logprobs: logprobsOrZero(sample.logprobs),
    temperatures: toTemperatures(sample, temperatureOf),
    env_name: envName,
    advantages: advantage === undefined ? null : Array.from(sample.mask, (trained) => (trained === 1 ? advantage : 0)),
  }
}

/** Returns the fields by position. Seven fields between `env_name` and `advantages` are null. */
function toArray({ token_ids, mask, logprobs, temperatures, env_name, advantages }: TrainingSample): unknown[] {
  const unknown = Array.from({ length: 7 }, () => null)
  return [token_ids, mask, logprobs, temperatures, env_name, ...(advantages === null ? [] : [...unknown, advantages])]
}

/** Returns the temperature of each trained token, and 1, prime-rl's padding, for all others. */
function toTemperatures(sample: Sample, temperatureOf: TemperatureOf): number[] {
  const temperatures = Array.from<number>({ length: sample.ids.length }).fill(1)
  for (const call of sample.calls.filter(({ isTrained }) => isTrained)) {
    temperatures.fill(temperatureOf(call), call.from, call.to)
  }
  return temperatures
}

/** Documented default of vLLM, SGLang and OpenAI's API. */
const DOCUMENTED_TEMPERATURE = 1

/** Order: temperature sent to the engine, default reported by the engine, option, documented default. */
function temperatureReader({ built }: ScoredSession, config: Config): TemperatureOf {
  const turns = new Map(built.session.turns.map((turn) => [turn.id, turn]))
  return ({ turnId, sampling }) => {
    if (sampling === undefined) {
      const turn = turns.get(turnId)
      return (turn && sentTemperature(turn)) ?? config.temperature ?? DOCUMENTED_TEMPERATURE
    }
    const option = sampling.assumed.includes('temperature') ? config.temperature : undefined
    return option ?? sampling.temperature ?? config.temperature ?? DOCUMENTED_TEMPERATURE
  }
}

/** For records of earlier versions, which do not contain the parameters sent to the engine. */
function sentTemperature({ forced, request }: Turn): number | undefined {
  if (typeof forced['temperature'] === 'number') return forced['temperature']
  const body = parseJsonObject(request) ?? {}
  // Google's API nests the temperature in `generationConfig`; the other three APIs have it at the top level.
  const asked = body['temperature'] ?? (body['generationConfig'] as { temperature?: unknown } | null)?.temperature
  return typeof asked === 'number' ? asked : undefined
}
