/** A binary heap: `pop()` returns the item that is before all others. */
export class Heap<T> {
  readonly #items: T[] = []
  readonly #isBefore: (a: T, b: T) => boolean

  constructor(isBefore: (a: T, b: T) => boolean) {
    this.#isBefore = isBefore
  }

  get first(): T | undefined {
    return this.#items[0]
  }

  push(item: T): void {
    const items = this.#items
    let i = items.length
    items.push(item)
    for (let parent = (i - 1) >> 1; i > 0 && this.#isBefore(item, items[parent]!); parent = (i - 1) >> 1) {
      items[i] = items[parent]!
      i = parent
    }
    items[i] = item
  }

  pop(): T | undefined {
    const items = this.#items
    const [top] = items
    const last = items.pop()
    if (last === undefined || items.length === 0) return top
    let i = 0
    for (let child = 1; child < items.length; child = 2 * i + 1) {
      if (child + 1 < items.length && this.#isBefore(items[child + 1]!, items[child]!)) child += 1
      if (!this.#isBefore(items[child]!, last)) break
      items[i] = items[child]!
      i = child
    }
    items[i] = last
    return top
  }
}
