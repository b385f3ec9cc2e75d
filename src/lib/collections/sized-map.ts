interface Entry<T> {
  value: T
  bytes: number
}

/**
 * A map that holds at most `limitBytes`, by the sizes that callers state. It evicts demoted keys first, then others, each in
 * order of last use.
 */
export class SizedMap<T> {
  readonly #entries = new Map<string, Entry<T>>()
  readonly #demoted = new Map<string, Entry<T>>()
  readonly #limitBytes: number
  #bytes = 0

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes
  }

  get bytes(): number {
    return this.#bytes
  }

  /** Counts as a use of the key. */
  get(key: string): T | undefined {
    const map = this.#demoted.has(key) ? this.#demoted : this.#entries
    const entry = map.get(key)
    if (entry === undefined) return undefined
    map.delete(key)
    map.set(key, entry)
    return entry.value
  }

  set(key: string, value: T, bytes: number): void {
    this.#delete(key)
    this.#entries.set(key, { value, bytes })
    this.#bytes += bytes
    for (const map of [this.#demoted, this.#entries]) {
      for (const oldest of map.keys()) {
        if (this.#bytes <= this.#limitBytes) return
        this.#delete(oldest)
      }
    }
  }

  demote(key: string): void {
    const entry = this.#entries.get(key)
    if (entry === undefined) return
    this.#entries.delete(key)
    this.#demoted.set(key, entry)
  }

  #delete(key: string): void {
    for (const map of [this.#entries, this.#demoted]) {
      this.#bytes -= map.get(key)?.bytes ?? 0
      map.delete(key)
    }
  }
}
