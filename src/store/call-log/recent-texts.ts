import { commonPrefix, commonSuffix } from '../../lib/collections/common-prefix.ts'

/** A shorter overlap is not worth a reference. */
const MIN_SHARED_UNITS = 256
const MAX_TEXTS = 8
const MAX_OLDER_UNITS = 1024 * 1024
/** Longer texts are always stored completely, to bound the memory of a session. */
const MAX_UNITS = 16 * 1024 * 1024

/** Reference to an earlier request with the same start and end. Lengths are UTF-16 units. */
export interface TextBase {
  /** Sequence of its intent record. */
  record: number
  prefix: number
  suffix: number
}

/**
 * The latest request of each conversation in a session. A harness sends its whole history with every call, and most APIs place
 * the tools after the messages, so the new text is between a long common prefix and a long common suffix.
 */
export class RecentTexts {
  /** Oldest first. */
  #texts: { record: number; text: string }[] = []

  /** Returns the part of `text` that this record must store, and remembers the text for later records. */
  share(record: number, text: string): { middle: string; base?: TextBase } {
    const base = this.#bestBase(text)
    this.#remember(record, text, base)
    if (base === undefined) return { middle: text }
    return { middle: text.slice(base.prefix, text.length - base.suffix), base }
  }

  #bestBase(text: string): TextBase | undefined {
    let best: TextBase | undefined
    for (const earlier of this.#texts) {
      const prefix = wholeCharacters(text, commonPrefix(earlier.text, text))
      const suffix = wholeCharactersFromEnd(
        text,
        commonSuffix(earlier.text, text, minLength(earlier.text, text) - prefix),
      )
      const shared = prefix + suffix
      if (shared < MIN_SHARED_UNITS || (best !== undefined && shared < best.prefix + best.suffix)) continue
      best = { record: earlier.record, prefix, suffix }
    }
    return best
  }

  #remember(record: number, text: string, base: TextBase | undefined): void {
    if (text.length < MIN_SHARED_UNITS || text.length > MAX_UNITS) return
    // A text that contains nearly all of its base continues that conversation and replaces it. Conversations that share only
    // their tools have much less in common.
    this.#texts = this.#texts.filter(
      (earlier) => earlier.record !== base?.record || base.prefix + base.suffix < earlier.text.length * 0.875,
    )
    this.#texts.push({ record, text })
    while (this.#texts.length > MAX_TEXTS || this.#olderUnits() > MAX_OLDER_UNITS) this.#texts.shift()
  }

  #olderUnits(): number {
    return this.#texts.slice(0, -1).reduce((sum, earlier) => sum + earlier.text.length, 0)
  }
}

/** Restores the text. Throws if the base is too short. */
export function joinText(base: string, { prefix, suffix }: TextBase, middle: string): string {
  if (prefix + suffix > base.length) throw new RangeError('The base is shorter than the shared parts')
  return base.slice(0, prefix) + middle + base.slice(base.length - suffix)
}

function minLength(a: string, b: string): number {
  return Math.min(a.length, b.length)
}

/** Does not split a surrogate pair: UTF-8 cannot encode a lone surrogate. */
function wholeCharacters(text: string, length: number): number {
  const last = length === 0 ? 0 : text.charCodeAt(length - 1)
  return last >= 0xd800 && last <= 0xdbff ? length - 1 : length
}

function wholeCharactersFromEnd(text: string, length: number): number {
  const first = length === 0 ? 0 : text.charCodeAt(text.length - length)
  return first >= 0xdc00 && first <= 0xdfff ? length - 1 : length
}
