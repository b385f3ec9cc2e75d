import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import { EngineHttp } from '../gateway/upstreams/wire/engine-http.ts'
import { RolloutError } from '../model/failure.ts'
import type { SessionRecord } from '../model/session.ts'
import type { TokenDecoder } from '../trajectory/attribute-context.ts'
import { loadTinyEngine } from './tiny-engine.ts'

export const TOKENIZER_FLAG = {
  type: 'string',
  hint: 'DIR',
  description: "Folder with the model's tokenizer.json, to read tokens; the tiny model's is built in",
} as const

export interface DecoderChoice {
  /** Folder with a `tokenizer.json`. */
  tokenizer?: string
  /** A running engine that can be asked what ids stand for. */
  upstream?: string
  upstreamKey?: string
}

/** Where the text of a session's tokens comes from. */
export interface TokenSource {
  /** Knows every id; absent where an engine has to be asked about each. */
  whole?: TokenDecoder
  /** Knows at least these ids. */
  load(ids: Iterable<number>): Promise<TokenDecoder>
}

/** What the flags name, else the tiny model's own tokenizer for its sessions; undefined: ids are all there is. */
export async function openTokenSource(
  session: Pick<SessionRecord, 'origin'>,
  choice: DecoderChoice,
): Promise<TokenSource | undefined> {
  if (choice.tokenizer !== undefined) return wholeSource(await loadVocabulary(choice.tokenizer))
  if (choice.upstream !== undefined) return upstreamSource(choice.upstream, choice.upstreamKey)
  const tiny = isTiny(session) ? await loadTinyVocabulary() : undefined
  return tiny === undefined ? undefined : wholeSource(tiny)
}

/** Undefined where the tiny engine is not installed: its sessions then show ids only. */
export async function loadTinyVocabulary(): Promise<TokenDecoder | undefined> {
  const engine = await loadTinyEngine().catch(() => undefined)
  return engine === undefined ? undefined : loadVocabulary(engine.embeddedModelFolder())
}

/** Whether the tiny engine answered in this session, so that its tokenizer and template are at hand. */
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

/** The bytes of every token of a `tokenizer.json`. Throws `config.invalid`. */
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

/** As SentencePiece spells: `▁` for a space, `<0xE4>` for a byte. */
function spacedBytes(name: string): Uint8Array {
  const byte = /^<0x([0-9A-F]{2})>$/.exec(name)?.[1]
  return byte === undefined ? Buffer.from(name.replaceAll('▁', ' ')) : Uint8Array.of(Number.parseInt(byte, 16))
}

// --- a running engine ------------------------------------------------------------------------------------------------

/** vLLM's word for it, SGLang's and llama.cpp's. */
const Detokenised = z
  .looseObject({ prompt: z.string().optional(), text: z.string().optional(), content: z.string().optional() })
  .transform(({ prompt, text, content }) => prompt ?? text ?? content)

const AT_ONCE = 8
const PATIENCE_MS = 30_000

/**
 * Asks for one token at a time: several together would come back as one text that nobody can cut up again. Half characters
 * come back as U+FFFD, and some tokenizers leave out a space in front; for reading that will do.
 */
function upstreamSource(baseUrl: string, apiKey: string | undefined): TokenSource {
  if (!URL.canParse(baseUrl)) {
    throw new RolloutError('config.invalid', `--upstream must be an http or https URL, not "${baseUrl}".`)
  }
  const known = new Map<number, Uint8Array>()
  const decoder: TokenDecoder = { bytesOf: (id) => known.get(id), isSpecial: () => false }
  return {
    async load(ids) {
      const missing = [...new Set(ids)].filter((id) => !known.has(id))
      await using http = new EngineHttp({ baseUrl, ...(apiKey === undefined ? {} : { apiKey }) })
      const signal = AbortSignal.timeout(PATIENCE_MS)
      for (let from = 0; from < missing.length; from += AT_ONCE) {
        await Promise.all(
          missing.slice(from, from + AT_ONCE).map(async (id) => {
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
