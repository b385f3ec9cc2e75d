import { commonPrefixOfIds } from '../../lib/collections/common-prefix.ts'

/** A shorter common prefix is not worth a reference. */
const MIN_SHARED_IDS = 64
const MAX_CONVERSATIONS = 8
const MAX_OLDER_IDS = 256 * 1024
/** Spare capacity of a continued conversation, so that its array is not reallocated at every turn. */
const SPARE_IDS = 2048
const NO_IDS = new Int32Array(0)

/** The first `length` ids of the prompt of an earlier turn followed by the sampled ids of one of its choices. */
export interface PromptBase {
  /** Sequence of its end record. */
  record: number
  /** Position among its choices. */
  choice: number
  length: number
}

/** The latest turn of one conversation. */
interface Conversation {
  record: number
  /** Prompt and first choice, with spare capacity: the next prompt usually extends them. */
  ids: Int32Array
  promptLength: number
  /** Sampled ids by choice; the first is a view of `ids`. */
  sampled: Int32Array[]
}

/**
 * The latest prompt of each conversation in a session, with its sampled ids. Keeps copies, because the caller may reuse its
 * arrays: four to five bytes per id.
 */
export class RecentPrompts {
  /** Oldest first. */
  #conversations: Conversation[] = []

  /** Returns the part of the prompt that this record must store, and remembers the prompt for later records. */
  share(record: number, prompt: Int32Array, sampled: readonly Int32Array[]): { tail: Int32Array; base?: PromptBase } {
    let best: { base: PromptBase; conversation: Conversation } | undefined
    for (const conversation of this.#conversations) {
      const base = findShared(conversation, prompt)
      if (base.length >= MIN_SHARED_IDS && base.length >= (best?.base.length ?? 0)) best = { base, conversation }
    }
    this.#remember(record, prompt, sampled, best)
    return best === undefined ? { tail: prompt } : { tail: prompt.subarray(best.base.length), base: best.base }
  }

  #remember(
    record: number,
    prompt: Int32Array,
    [first = NO_IDS, ...others]: readonly Int32Array[],
    best: { base: PromptBase; conversation: Conversation } | undefined,
  ): void {
    const end = prompt.length + first.length
    if (end < MIN_SHARED_IDS) return
    // A prompt that contains nearly all of an earlier one continues that conversation and replaces it. Conversations that
    // share only tools and instructions have much less in common.
    const replaced = best !== undefined && best.base.length >= best.conversation.promptLength * 0.875
    if (replaced) this.#conversations.splice(this.#conversations.indexOf(best.conversation), 1)
    const reused = replaced && best.conversation.ids.length >= end ? best.conversation.ids : undefined
    // A continued conversation will likely continue again; many others are a single call.
    const ids = reused ?? new Int32Array(replaced ? Math.ceil(end * 1.25) + SPARE_IDS : end)
    const inPlace = reused === undefined || best === undefined ? 0 : lengthInPlace(best.conversation, best.base)
    ids.set(prompt.subarray(inPlace), inPlace)
    ids.set(first, prompt.length)
    const sampled = [ids.subarray(prompt.length, end), ...others.map((choice) => choice.slice())]
    this.#conversations.push({ record, ids, promptLength: prompt.length, sampled })
    while (this.#conversations.length > MAX_CONVERSATIONS || this.#olderIds() > MAX_OLDER_IDS)
      this.#conversations.shift()
  }

  #olderIds(): number {
    return this.#conversations.slice(0, -1).reduce((sum, conversation) => sum + conversation.ids.length, 0)
  }
}

function findShared(conversation: Conversation, prompt: Int32Array): PromptBase {
  const { record, promptLength, sampled } = conversation
  const base = { record, choice: 0, length: commonPrefixOfIds(conversation.ids.subarray(0, promptLength), prompt) }
  if (base.length < promptLength) return base
  const rest = prompt.subarray(promptLength)
  sampled.forEach((ids, choice) => {
    const length = promptLength + commonPrefixOfIds(ids, rest)
    if (length > base.length) Object.assign(base, { choice, length })
  })
  return base
}

/** How many of the shared ids are at the start of the conversation's array. */
function lengthInPlace({ promptLength }: Conversation, { choice, length }: PromptBase): number {
  return choice === 0 ? length : Math.min(length, promptLength)
}
