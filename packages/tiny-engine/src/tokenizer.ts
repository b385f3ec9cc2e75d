import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers'
import * as z from 'zod'

const AddedToken = z.looseObject({ id: z.int(), content: z.string(), special: z.boolean() })
const TokenizerFile = z.looseObject({
  added_tokens: z.array(AddedToken),
  pre_tokenizer: z.looseObject({ type: z.literal('ByteLevel'), use_regex: z.literal(true) }),
  model: z.looseObject({ type: z.literal('BPE'), vocab: z.record(z.string(), z.int()) }),
})
const TokenizerConfig = z.looseObject({ eos_token: z.string() })

export interface EncodeOptions {
  /**
   * Whether `<|im_end|>` and the like in the text become their special ids, as they do in vLLM's chat. Without, they are
   * ordinary characters. No id is ever added in front or behind.
   */
  parseSpecial?: boolean
}

export interface DecodeOptions {
  skipSpecialTokens?: boolean
}

/** A byte-level BPE tokenizer: every text has ids, every list of ids has bytes, and decoding can lose only bytes that are not UTF-8. */
export interface Tokenizer {
  readonly vocabularySize: number
  readonly eosId: number
  encode(text: string, options?: EncodeOptions): Int32Array
  decode(ids: Iterable<number>, options?: DecodeOptions): string
  /** Raw bytes of one token; they need not be whole characters. */
  bytesOf(id: number): Uint8Array
  /** One token decoded by itself: U+FFFD where its bytes are no character. */
  tokenText(id: number): string
  /** The token as the vocabulary spells it: one character per byte, `Ġ` for a space. */
  tokenName(id: number): string
  isSpecial(id: number): boolean
}

/** What is used of the library, whose own types do not resolve under Node's rules. */
interface Encoder {
  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[] }
}

/** Reads `tokenizer.json` and `tokenizer_config.json` of a model folder. */
export async function loadTokenizer(folder: string): Promise<Tokenizer> {
  const load = async (name: string): Promise<unknown> => JSON.parse(await readFile(join(folder, name), 'utf8'))
  const [file, config] = await Promise.all([load('tokenizer.json'), load('tokenizer_config.json')])
  return createTokenizer(file, config)
}

export function createTokenizer(tokenizerJson: unknown, tokenizerConfig: unknown): Tokenizer {
  const file = TokenizerFile.parse(tokenizerJson)
  const config = TokenizerConfig.parse(tokenizerConfig)
  const exact = { ...file, pre_tokenizer: EXACT_PRE_TOKENIZER }
  const createEncoder = (addedTokens: readonly unknown[]): Encoder =>
    new HuggingFaceTokenizer({ ...exact, added_tokens: addedTokens }, config) as Encoder
  const parsing = createEncoder(file.added_tokens)
  let plain: Encoder | undefined

  const names: string[] = []
  for (const [name, id] of Object.entries(file.model.vocab)) names[id] = name
  for (const { id, content } of file.added_tokens) names[id] = content
  const added = new Map(file.added_tokens.map((token) => [token.id, token]))
  const byteOfCharacter = byteLevelAlphabet()
  const bytes = names.map((name, id) =>
    added.has(id)
      ? new TextEncoder().encode(name)
      : Uint8Array.from(name, (character) => byteOfCharacter.get(character)!),
  )
  const eosId = names.indexOf(config.eos_token)
  if (eosId === -1) throw new Error(`The end-of-turn token ${config.eos_token} is not in the vocabulary.`)

  const known = <T>(list: readonly T[], id: number): T => {
    const entry = list[id]
    if (entry === undefined) throw new RangeError(`Token id ${id} is not in the vocabulary of ${list.length}.`)
    return entry
  }
  const isSpecial = (id: number) => added.get(id)?.special === true

  const tokenizer: Tokenizer = {
    vocabularySize: names.length,
    eosId,
    encode(text, { parseSpecial = true } = {}) {
      const encoder = parseSpecial ? parsing : (plain ??= createEncoder([]))
      return Int32Array.from(encoder.encode(text, { add_special_tokens: false }).ids)
    },
    decode(ids, options) {
      const decoder = new IncrementalDecoder(tokenizer, options)
      let text = ''
      for (const id of ids) text += decoder.push(id)
      return text + decoder.flush()
    },
    bytesOf: (id) => known(bytes, id),
    tokenText: (id) => decodeUtf8(known(bytes, id)),
    tokenName: (id) => known(names, id),
    isSpecial,
  }
  return tokenizer
}

/**
 * Text of a token stream, as early as it is certain: bytes of an unfinished character are held back. All pushes and the
 * flush together are what decoding all ids at once gives.
 */
export class IncrementalDecoder {
  readonly #tokenizer: Pick<Tokenizer, 'bytesOf' | 'isSpecial'>
  readonly #skipSpecialTokens: boolean
  readonly #utf8 = new TextDecoder('utf-8', { ignoreBOM: true })

  constructor(tokenizer: Pick<Tokenizer, 'bytesOf' | 'isSpecial'>, options: DecodeOptions = {}) {
    this.#tokenizer = tokenizer
    this.#skipSpecialTokens = options.skipSpecialTokens ?? false
  }

  push(id: number): string {
    const bytes = this.#tokenizer.bytesOf(id)
    if (this.#skipSpecialTokens && this.#tokenizer.isSpecial(id)) return ''
    return this.#utf8.decode(bytes, { stream: true })
  }

  /** U+FFFD for what was held back; afterwards the decoder starts anew. */
  flush(): string {
    return this.#utf8.decode()
  }
}

/**
 * GPT-2's own splitting rule, spelt out. The library's built-in copy of it uses JavaScript's `\s`, which counts U+FEFF as
 * a space and U+0085 as none, the reverse of the Rust tokenizer; patterns from a file are translated faithfully.
 */
const EXACT_PRE_TOKENIZER = {
  type: 'Sequence',
  pretokenizers: [
    {
      type: 'Split',
      pattern: { Regex: "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" },
      behavior: 'Isolated',
      invert: false,
    },
    { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false },
  ],
}

function decodeUtf8(bytes: Uint8Array): string {
  return new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes)
}

/** Which byte each character of the vocabulary stands for: printable Latin-1 for itself, the rest from U+0100 on. */
function byteLevelAlphabet(): Map<string, number> {
  const alphabet = new Map<string, number>()
  let next = 0x100
  for (let byte = 0; byte < 256; byte++) {
    const isItself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
    alphabet.set(String.fromCodePoint(isItself ? byte : next++), byte)
  }
  return alphabet
}
