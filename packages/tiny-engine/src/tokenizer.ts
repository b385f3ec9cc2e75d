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
   * Whether special tokens in the text, such as `<|im_end|>`, become their ids, as in vLLM's chat. Otherwise they are ordinary
   * characters. No id is added at the start or end.
   */
  parseSpecial?: boolean
}

export interface DecodeOptions {
  skipSpecialTokens?: boolean
}

/**
 * A byte-level BPE tokenizer: every text has ids, every list of ids has bytes, and decoding loses only bytes that are
 * not UTF-8.
 */
export interface Tokenizer {
  readonly vocabularySize: number
  readonly eosId: number
  encode(text: string, options?: EncodeOptions): Int32Array
  decode(ids: Iterable<number>, options?: DecodeOptions): string
  /** Returns the bytes of one token, which need not be whole characters. */
  bytesOf(id: number): Uint8Array
  /** Decodes one token alone: U+FFFD for bytes that are not a character. */
  tokenText(id: number): string
  /** Returns the token in the notation of the vocabulary: one character per byte, `Ġ` for a space. */
  tokenName(id: number): string
  isSpecial(id: number): boolean
}

/** The used part of the library, whose own types do not resolve under Node's rules. */
interface Encoder {
  encode(text: string, options: { add_special_tokens: boolean }): { ids: number[] }
}

/** Loads `tokenizer.json` and `tokenizer_config.json` of a model folder. */
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
 * Decodes a token stream and holds back bytes of an unfinished character. The concatenation of all pushes and the flush
 * equals the decoding of all ids at once.
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

  /** Returns U+FFFD for bytes that were held back, and resets the decoder. */
  flush(): string {
    return this.#utf8.decode()
  }
}

/**
 * GPT-2's splitting rule. The library's built-in copy uses JavaScript's `\s`, which includes U+FEFF and excludes U+0085, the
 * reverse of the Rust tokenizer; patterns from a file are translated correctly.
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

/** Maps each character of the vocabulary to its byte: printable Latin-1 to itself, the rest from U+0100 on. */
function byteLevelAlphabet(): Map<string, number> {
  const alphabet = new Map<string, number>()
  let next = 0x100
  for (let byte = 0; byte < 256; byte++) {
    const isItself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
    alphabet.set(String.fromCodePoint(isItself ? byte : next++), byte)
  }
  return alphabet
}
