/** Union-find. Sets and their members keep the order of the items. */
export class DisjointSets<T> {
  readonly #above = new Map<T, T>()
  readonly #items: readonly T[]

  constructor(items: readonly T[]) {
    this.#items = items
  }

  join(one: T, other: T): void {
    const [a, b] = [this.#top(one), this.#top(other)]
    if (a !== b) this.#above.set(b, a)
  }

  sets(): T[][] {
    return [...Map.groupBy(this.#items, (item) => this.#top(item)).values()]
  }

  #top(item: T): T {
    let top = item
    for (let next = this.#above.get(top); next !== undefined; next = this.#above.get(top)) top = next
    // Path compression.
    for (let at = item; at !== top;) {
      const next = this.#above.get(at) ?? top
      this.#above.set(at, top)
      at = next
    }
    return top
  }
}
