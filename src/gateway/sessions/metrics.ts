import type { Failure } from '../../model/failure.ts'
import type { TurnResponse } from '../../model/turn.ts'

export interface CountedTurn {
  response?: TurnResponse
  failure?: Failure
  /** Unix milliseconds. */
  startedAt: number
  firstTokenAt?: number
  endedAt: number
}

/** Upper bounds of the buckets of a duration, in seconds. */
const SECONDS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600] as const

export class Metrics {
  readonly #counters = new Map<string, number>()
  readonly #turnSeconds = new Histogram('polar_turn_seconds')
  readonly #firstTokenSeconds = new Histogram('polar_first_token_seconds')

  countTurn({ response, failure, startedAt, firstTokenAt, endedAt }: CountedTurn): void {
    const labels = `outcome="${failure?.code ?? 'answered'}",grade="${response?.grade ?? 'none'}"`
    this.#add(`polar_turns_total{${labels}}`, 1)
    if (response !== undefined) {
      this.#add('polar_prompt_tokens_total', response.promptIds.length)
      const sampled = response.choices.reduce((sum, choice) => sum + choice.ids.length, 0)
      this.#add('polar_sampled_tokens_total', sampled)
    }
    this.#turnSeconds.observe((endedAt - startedAt) / 1000)
    if (firstTokenAt !== undefined) this.#firstTokenSeconds.observe((firstTokenAt - startedAt) / 1000)
  }

  /** Returns every counter by its Prometheus name and labels. Plain data, so that shards can be added up. */
  snapshot(): Record<string, number> {
    return Object.fromEntries([
      ...this.#counters,
      ...this.#turnSeconds.counters(),
      ...this.#firstTokenSeconds.counters(),
    ])
  }

  #add(key: string, amount: number): void {
    this.#counters.set(key, (this.#counters.get(key) ?? 0) + amount)
  }
}

class Histogram {
  readonly #name: string
  readonly #counts = Array.from({ length: SECONDS.length + 1 }, () => 0)
  #sum = 0

  constructor(name: string) {
    this.#name = name
  }

  observe(seconds: number): void {
    const bucket = SECONDS.findIndex((bound) => seconds <= bound)
    this.#counts[bucket === -1 ? SECONDS.length : bucket]! += 1
    this.#sum += seconds
  }

  /** A Prometheus bucket includes the counts of all smaller buckets. */
  *counters(): Generator<[string, number]> {
    let count = 0
    for (const [i, own] of this.#counts.entries()) {
      count += own
      yield [`${this.#name}_bucket{le="${SECONDS[i] ?? '+Inf'}"}`, count]
    }
    yield [`${this.#name}_sum`, this.#sum]
    yield [`${this.#name}_count`, count]
  }
}

const HELP: Readonly<Record<string, string>> = {
  polar_turns_total: 'Model calls that ended, by outcome and grade of their tokens.',
  polar_prompt_tokens_total: 'Prompt tokens captured.',
  polar_sampled_tokens_total: 'Sampled tokens captured.',
  polar_turn_seconds: 'From the request to the end of the answer.',
  polar_first_token_seconds: 'From the request to the first sampled token.',
  polar_in_flight: 'Calls that were sent to the engine and have not ended.',
  polar_paused: 'Whether new calls are delayed.',
  polar_sessions: 'Open sessions.',
  polar_continuation: 'Whether prompts continue the tokens of earlier calls.',
}

/** Renders Prometheus' text format, version 0.0.4. Adds the counters of several processes. */
export function formatMetrics(
  counters: readonly Readonly<Record<string, number>>[],
  gauges: Readonly<Record<string, number>>,
): string {
  const sums = new Map<string, number>()
  for (const snapshot of counters) {
    for (const [key, value] of Object.entries(snapshot)) sums.set(key, (sums.get(key) ?? 0) + value)
  }
  const lines = Object.entries(HELP).flatMap(([name, help]) => {
    const isGauge = name in gauges
    const isHistogram = name.endsWith('_seconds')
    const type = isGauge ? 'gauge' : isHistogram ? 'histogram' : 'counter'
    const own = [...sums].filter(([key]) => (isHistogram ? key.startsWith(`${name}_`) : key.split('{')[0] === name))
    const values = isGauge ? [[name, gauges[name] ?? 0] as const] : own
    return [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, ...values.map(([key, value]) => `${key} ${value}`)]
  })
  return `${lines.join('\n')}\n`
}
