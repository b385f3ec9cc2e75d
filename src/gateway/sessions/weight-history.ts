import type { VersionRange } from '../../model/turn.ts'

/**
 * The weight versions that the trainer has set, in order. A version is set while the engine samples nothing or while calls
 * are delayed. So a token was sampled by a version between the version at which its call was sent and the version at which
 * the token was read from the network. The wire gives no closer bound: a token may have waited in a socket buffer.
 */
export class WeightHistory {
  readonly #versions: string[] = []

  /** Number of versions so far. Two positions bound the version of a token. */
  get position(): number {
    return this.#versions.length
  }

  /** The current version; undefined before the trainer has set one. */
  get version(): string | undefined {
    return this.#versions.at(-1)
  }

  /** The engine samples with `version` from now on. Setting the current version again has no effect. */
  set(version: string): void {
    if (version !== this.version) this.#versions.push(version)
  }

  /**
   * Returns the versions that may have sampled a token whose call was sent at position `sent` and that arrived at position
   * `arrived`. `reported` is the version that the engine reports for the end of the answer: no token of the answer is
   * newer. Undefined when the call was sent before the first version was set.
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
