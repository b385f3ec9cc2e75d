import * as z from 'zod'
import { parseJsonObject } from '../../lib/json/json-text.ts'
import type { Plug } from '../../lib/plug.ts'
import type { Sample, SampleCall } from '../../model/sample.ts'
import { lacksLogprob, logprobsOrZero } from '../../model/sample-facts.ts'
import type { Turn } from '../../model/turn.ts'
import type { ScoredSession } from '../score-session.ts'
import { lineWriter, type Exporter } from './exporter.ts'

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
    .describe('Temperature of calls for which neither the request nor the engine names one; default 1'),
})
type Config = z.infer<typeof Config>

/**
 * prime-rl's TrainingSample, a row a sample, with no field it does not know. Credit is `advantages`, or null where none
 * was computed: a reward alone has no place there. Every row has `temperatures`: its trainer refuses rows without them. Rows
 * whose trained tokens lack a log probability are left out.
 */
export const primeRl: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: (config) => ({
    name: 'prime_rl',
    extension: 'jsonl',
    isAppendable: true,
    needs: ['logprobs'],
    open: () =>
      lineWriter(function* (session) {
        const temperatureOf = temperatureReader(session, config)
        for (const sample of session.samples()) {
          if (lacksLogprob(sample)) continue
          const row = toTrainingSample(sample, temperatureOf, config)
          yield config.layout === 'object' ? row : toArray(row)
        }
      }),
  }),
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

/** By position; between `env_name` and `advantages` lie seven fields that we have nothing for. */
function toArray({ token_ids, mask, logprobs, temperatures, env_name, advantages }: TrainingSample): unknown[] {
  const unknown = Array.from({ length: 7 }, () => null)
  return [token_ids, mask, logprobs, temperatures, env_name, ...(advantages === null ? [] : [...unknown, advantages])]
}

/** Of each trained token; prime-rl reads no others, they have the 1 it pads with. */
function toTemperatures(sample: Sample, temperatureOf: TemperatureOf): number[] {
  const temperatures = Array.from<number>({ length: sample.ids.length }).fill(1)
  for (const call of sample.calls.filter(({ isTrained }) => isTrained)) {
    temperatures.fill(temperatureOf(call), call.from, call.to)
  }
  return temperatures
}

/** What vLLM, SGLang and OpenAI's API sample with when a request names no temperature. */
const DOCUMENTED_TEMPERATURE = 1

/** What went to the engine, else what the engine reports as its default, else the option, else the documented default. */
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

/** For records of earlier versions, which do not tell what was sent. */
function sentTemperature({ forced, request }: Turn): number | undefined {
  if (typeof forced['temperature'] === 'number') return forced['temperature']
  const body = parseJsonObject(request) ?? {}
  // Google's API has it one level down; the other three at the top.
  const asked = body['temperature'] ?? (body['generationConfig'] as { temperature?: unknown } | null)?.temperature
  return typeof asked === 'number' ? asked : undefined
}
