/**
 * Limits a search whose cost grows faster than the session. Counted in characters and not in time, so that the same
 * session gives the same result on every machine.
 */
export class WorkLimit {
  #left: number

  constructor(characters: number) {
    this.#left = characters
  }

  get left(): number {
    return this.#left
  }

  /** False when less is left; nothing may be searched then. */
  spend(characters: number): boolean {
    if (this.#left < characters) {
      this.#left = 0
      return false
    }
    this.#left -= characters
    return true
  }
}
