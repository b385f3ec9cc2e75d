import type { VersionRange } from '../../model/turn.ts'

/**
 * The weight versions that the trainer has named, in order. A version is named while the engine samples nothing, or while
 * calls are held back, so a token was sampled by a version between the one at which its call was sent and the one at which
 * the token was read from the network. Nothing on the wire narrows this down: a token may have waited in a socket buffer.
 */
export class WeightHistory {
  readonly #versions: string[] = []

  /** Number of versions named so far; a token's stamp is made from two of these. */
  get position(): number {
    return this.#versions.length
  }

  /** The current version; undefined before the trainer has named one. */
  get version(): string | undefined {
    return this.#versions.at(-1)
  }

  /** The engine samples with `version` from here on. Naming the current version again is no change. */
  name(version: string): void {
    if (version !== this.version) this.#versions.push(version)
  }

  /**
   * The versions that may have sampled a token whose call was sent at position `sent` and that arrived at position
   * `arrived`. `reported` is the version that the engine itself names for the end of the answer: no token of the answer is
   * newer. Undefined when the call was sent before the first version was named.
   */
  between(sent: number, arrived: number, reported?: string): VersionRange | undefined {
    const versions = this.#versions.slice(Math.max(0, sent - 1), arrived)
    const [version] = versions
    if (sent === 0 || version === undefined) return undefined
    const last = reported === undefined ? -1 : versions.lastIndexOf(reported)
    const newest = last === -1 ? versions.length - 1 : last
    return newest === 0 ? { version } : { version, newest: versions[newest] as string }
  }
}
