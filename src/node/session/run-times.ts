/** So many of the last runs count. */
const REMEMBERED = 64
/** Fewer say nothing. */
const ENOUGH = 3
/** Tasks that are remembered; the one that was longest not heard of is forgotten. */
const TASKS = 4096

/** How long things took, and so how long the next is likely to. */
export class RunTimes {
  readonly #byKey = new Map<string, number[]>()

  add(key: string, ms: number): void {
    const times = this.#byKey.get(key) ?? []
    times.push(ms)
    if (times.length > REMEMBERED) times.shift()
    this.#byKey.delete(key)
    this.#byKey.set(key, times)
    if (this.#byKey.size > TASKS) this.#byKey.delete(this.#byKey.keys().next().value!)
  }

  /** The time by which that part of them was over; undefined before enough is known. */
  quantile(key: string, part: number): number | undefined {
    const times = this.#byKey.get(key)
    if (times === undefined || times.length < ENOUGH) return undefined
    const sorted = times.toSorted((a, b) => a - b)
    return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))]
  }
}
