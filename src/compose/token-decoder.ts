import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import { EngineHttp } from '../gateway/upstreams/wire/engine-http.ts'
import { RolloutError } from '../model/failure.ts'
import type { SessionRecord } from '../model/session.ts'
import type { TokenDecoder } from '../trajectory/attribute-context.ts'
import { findTinyModel } from './tiny-engine.ts'

export interface DecoderChoice {
  /** Folder with a `tokenizer.json`. */
  tokenizer?: string
  /** A running engine that returns the text of token ids. */
  engine?: { url?: string; key?: string }
}

/** Source of the text of a session's tokens. */
export interface TokenSource {
  /** Decodes every id; absent for an engine, which is queried for each id. */
  whole?: TokenDecoder
  /** Returns a decoder of at least these ids. */
  load(ids: Iterable<number>): Promise<TokenDecoder>
}

/**
 * Opens the chosen tokenizer or engine; without a choice, the built-in tokenizer for sessions of the tiny engine. Undefined if
 * only ids can be shown.
 */
export async function openTokenSource(
  session: Pick<SessionRecord, 'origin'>,
  choice: DecoderChoice,
): Promise<TokenSource | undefined> {
  if (choice.tokenizer !== undefined) return wholeSource(await loadVocabulary(choice.tokenizer))
  if (choice.engine?.url !== undefined) return engineSource(choice.engine.url, choice.engine.key)
  const tiny = isTiny(session) ? await loadTinyVocabulary() : undefined
  return tiny === undefined ? undefined : wholeSource(tiny)
}

/** Undefined if the tiny engine is not installed. */
export async function loadTinyVocabulary(): Promise<TokenDecoder | undefined> {
  const folder = await findTinyModel()
  return folder === undefined ? undefined : loadVocabulary(folder)
}

/** Whether the tiny engine, whose tokenizer and template are built in, answered the calls of this session. */
export function isTiny({ origin }: Pick<SessionRecord, 'origin'>): boolean {
  return (origin['engine'] as { kind?: string } | undefined)?.kind === 'tiny'
}

function wholeSource(whole: TokenDecoder): TokenSource {
  return { whole, load: async () => whole }
}

// --- tokenizer.json --------------------------------------------------------------------------------------------------

const TokenizerFile = z.looseObject({
  added_tokens: z.array(z.looseObject({ id: z.int(), content: z.string(), special: z.boolean() })).default([]),
  pre_tokenizer: z.unknown().optional(),
  decoder: z.unknown().optional(),
  model: z.looseObject({
    // Byte-pair and word-piece vocabularies name ids, unigram ones list pieces with their scores.
    vocab: z.union([z.record(z.string(), z.int()), z.array(z.tuple([z.string(), z.number()]).rest(z.unknown()))]),
  }),
})

/** Loads the bytes of every token from `tokenizer.json`. Throws `config.invalid`. */
export async function loadVocabulary(folder: string): Promise<TokenDecoder> {
  const path = join(folder, 'tokenizer.json')
  try {
    return toVocabulary(JSON.parse(await readFile(path, 'utf8')))
  } catch (error) {
    const problem = error instanceof z.ZodError ? z.prettifyError(error) : (error as Error).message
    throw new RolloutError('config.invalid', `The tokenizer ${path} cannot be read: ${problem}`, { cause: error })
  }
}

export function toVocabulary(tokenizerJson: unknown): TokenDecoder {
  const { added_tokens, pre_tokenizer, decoder, model } = TokenizerFile.parse(tokenizerJson)
  const toBytes = usesByteLevel([pre_tokenizer, decoder]) ? byteLevelBytes() : spacedBytes
  const entries = Array.isArray(model.vocab)
    ? model.vocab.map(([piece], id) => [piece, id] as const)
    : Object.entries(model.vocab)
  const bytes: Uint8Array[] = []
  for (const [name, id] of entries) bytes[id] = toBytes(name)
  for (const { id, content } of added_tokens) bytes[id] = Buffer.from(content)
  const special = new Set(added_tokens.flatMap((token) => (token.special ? [token.id] : [])))
  return { bytesOf: (id) => bytes[id], isSpecial: (id) => special.has(id) }
}

function usesByteLevel(value: unknown): boolean {
  if (typeof value !== 'object' || value === null) return false
  return (value as { type?: unknown }).type === 'ByteLevel' || Object.values(value).some(usesByteLevel)
}

function byteLevelBytes(): (name: string) => Uint8Array {
  const alphabet = byteLevelAlphabet()
  return (name) => {
    const bytes = Array.from(name, (character) => alphabet.get(character))
    return bytes.includes(undefined) ? Buffer.from(name) : Uint8Array.from(bytes as number[])
  }
}

/** SentencePiece writes `▁` for a space and `<0xE4>` for a byte. */
function spacedBytes(name: string): Uint8Array {
  const byte = /^<0x([0-9A-F]{2})>$/.exec(name)?.[1]
  return byte === undefined ? Buffer.from(name.replaceAll('▁', ' ')) : Uint8Array.of(Number.parseInt(byte, 16))
}

// --- a running engine ------------------------------------------------------------------------------------------------

/** The field is `prompt` in vLLM, `text` in SGLang and `content` in llama.cpp. */
const Detokenised = z
  .looseObject({ prompt: z.string().optional(), text: z.string().optional(), content: z.string().optional() })
  .transform(({ prompt, text, content }) => prompt ?? text ?? content)

const MAX_CONCURRENT_REQUESTS = 8
const TIMEOUT_MS = 30_000

/**
 * Sends one token per request: the text of several tokens could not be split again. An engine returns U+FFFD for part of a
 * character, and some tokenizers omit a leading space; for display this is accurate enough.
 */
function engineSource(baseUrl: string, apiKey: string | undefined): TokenSource {
  if (!URL.canParse(baseUrl)) {
    throw new RolloutError('config.invalid', `--engine-url must be an http or https URL, not "${baseUrl}".`)
  }
  const known = new Map<number, Uint8Array>()
  const decoder: TokenDecoder = { bytesOf: (id) => known.get(id), isSpecial: () => false }
  return {
    async load(ids) {
      const missing = [...new Set(ids)].filter((id) => !known.has(id))
      await using http = new EngineHttp({ baseUrl, apiKey })
      const signal = AbortSignal.timeout(TIMEOUT_MS)
      for (let from = 0; from < missing.length; from += MAX_CONCURRENT_REQUESTS) {
        await Promise.all(
          missing.slice(from, from + MAX_CONCURRENT_REQUESTS).map(async (id) => {
            const body = JSON.stringify({ tokens: [id], skip_special_tokens: false })
            const text = await http.query('/detokenize', Detokenised, { body, signal })
            if (text !== undefined) known.set(id, Buffer.from(text))
          }),
        )
      }
      return decoder
    },
  }
}

/** Maps each character of a byte-level vocabulary to its byte: printable Latin-1 to itself, the others from U+0100 upwards. */
function byteLevelAlphabet(): Map<string, number> {
  const alphabet = new Map<string, number>()
  let next = 0x100
  for (let byte = 0; byte < 256; byte++) {
    const isItself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
    alphabet.set(String.fromCodePoint(isItself ? byte : next++), byte)
  }
  return alphabet
}
