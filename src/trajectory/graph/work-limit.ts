/**
 * Limits a search whose cost grows faster than the session. Counts characters instead of time, so that a session gives the
 * same result on every machine.
 */
export class WorkLimit {
  #left: number

  constructor(characters: number) {
    this.#left = characters
  }

  get left(): number {
    return this.#left
  }

  /** Returns false if fewer characters are left. The caller must not search then. */
  spend(characters: number): boolean {
    if (this.#left < characters) {
      this.#left = 0
      return false
    }
    this.#left -= characters
    return true
  }
}
