/** Number of times kept per key. */
const MAX_TIMES = 64
/** Below this number of times there is no estimate. */
const MIN_TIMES = 3
/** Number of keys kept; the least recently updated key is evicted. */
const MAX_KEYS = 4096

/** Estimates durations from the last durations with the same key. */
export class RunTimes {
  readonly #byKey = new Map<string, number[]>()

  add(key: string, ms: number): void {
    const times = this.#byKey.get(key) ?? []
    times.push(ms)
    if (times.length > MAX_TIMES) times.shift()
    this.#byKey.delete(key)
    this.#byKey.set(key, times)
    if (this.#byKey.size > MAX_KEYS) this.#byKey.delete(this.#byKey.keys().next().value!)
  }

  /** The given quantile of the kept durations; undefined if there are too few. */
  quantile(key: string, part: number): number | undefined {
    const times = this.#byKey.get(key)
    if (times === undefined || times.length < MIN_TIMES) return undefined
    const sorted = times.toSorted((a, b) => a - b)
    return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))]
  }
}
