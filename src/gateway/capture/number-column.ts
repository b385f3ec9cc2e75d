/**
 * A growing array for numbers that arrive a few at a time. A single appended array is kept without a copy, so callers must
 * not write to appended or returned arrays.
 */
export class NumberColumn<T extends Int32Array | Float32Array> {
  readonly #create: (length: number) => T
  #values: T
  #length = 0

  constructor(create: (length: number) => T) {
    this.#create = create
    this.#values = create(0)
  }

  get length(): number {
    return this.#length
  }

  append(numbers: T): void {
    const end = this.#length + numbers.length
    if (this.#length === 0) {
      this.#values = numbers
    } else {
      if (end > this.#values.length) this.#grow(end)
      this.#values.set(numbers, this.#length)
    }
    this.#length = end
  }

  toArray(): T {
    if (this.#length === this.#values.length) return this.#values
    const copy = this.#create(this.#length)
    copy.set(this.#values.subarray(0, this.#length))
    return copy
  }

  #grow(atLeast: number): void {
    const larger = this.#create(Math.max(atLeast, this.#length * 2, 64))
    larger.set(this.#values.subarray(0, this.#length))
    this.#values = larger
  }
}
