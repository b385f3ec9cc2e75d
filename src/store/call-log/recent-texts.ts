import { commonPrefix, commonSuffix } from '../../lib/collections/common-prefix.ts'

/** Less than this is not worth a reference. */
const MIN_SHARED_UNITS = 256
const MAX_TEXTS = 8
const MAX_OLDER_UNITS = 1024 * 1024
/** Longer texts are stored whole each time: a session could hold any amount of memory with them. */
const MAX_UNITS = 16 * 1024 * 1024

/** Which earlier request of the session this one begins and ends like. Lengths count UTF-16 units, as strings do. */
export interface TextBase {
  /** Sequence of its intent record. */
  record: number
  prefix: number
  suffix: number
}

/**
 * The latest request of each conversation in a session. A harness sends its whole history with every call, and most
 * APIs have the tools behind the messages, so what is new stands between two long ends that were there before.
 */
export class RecentTexts {
  /** Oldest first. */
  #texts: { record: number; text: string }[] = []

  /** What of `text` must be stored in this record, and remembers it for those to come. */
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
        commonSuffix(earlier.text, text, smaller(earlier.text, text) - prefix),
      )
      const shared = prefix + suffix
      if (shared < MIN_SHARED_UNITS || (best !== undefined && shared < best.prefix + best.suffix)) continue
      best = { record: earlier.record, prefix, suffix }
    }
    return best
  }

  #remember(record: number, text: string, base: TextBase | undefined): void {
    if (text.length < MIN_SHARED_UNITS || text.length > MAX_UNITS) return
    // A text that holds nearly all of its base is the same conversation, further on; the base has had its use. Much
    // less than all is shared by conversations that have only their tools in common.
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

/** The text again. Throws when the base cannot be the one that was meant. */
export function joinText(base: string, { prefix, suffix }: TextBase, middle: string): string {
  if (prefix + suffix > base.length) throw new RangeError('The base is shorter than what was shared with it')
  return base.slice(0, prefix) + middle + base.slice(base.length - suffix)
}

function smaller(a: string, b: string): number {
  return Math.min(a.length, b.length)
}

/** Not between the halves of a surrogate pair: UTF-8 has no way to write one half. */
function wholeCharacters(text: string, length: number): number {
  const last = length === 0 ? 0 : text.charCodeAt(length - 1)
  return last >= 0xd800 && last <= 0xdbff ? length - 1 : length
}

function wholeCharactersFromEnd(text: string, length: number): number {
  const first = length === 0 ? 0 : text.charCodeAt(text.length - length)
  return first >= 0xdc00 && first <= 0xdfff ? length - 1 : length
}
