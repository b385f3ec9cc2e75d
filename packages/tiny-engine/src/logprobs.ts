import { type TokenJson, type TokenTexts, toTokenJson } from './choice.ts'
import type { SampledToken } from './policies/policy.ts'

/** vLLM's replacement of minus infinity, which JSON cannot express. */
const LEAST = -9999

export interface LogprobStyle {
  /** Number of alternatives; -1 is all. */
  top: number
  /** Whether to name tokens `token_id:N`. */
  asTokenIds: boolean
}

/**
 * Returns one entry of `logprobs.content` for the last of `ids`. Alternatives are in vLLM's order: the sampled token first,
 * then the likeliest in descending order, up to the requested number.
 */
export function chatLogprob(
  token: SampledToken,
  ids: readonly number[],
  texts: TokenTexts,
  style: LogprobStyle,
): string {
  const own = entryOf(token.id, ids, texts)
  const named = style.asTokenIds ? toTokenJson(`token_id:${token.id}`, textOf(token.id, ids, texts)) : own
  const main = `${named.head}${printLogprob(token.logprob)}${named.tail}`
  if (style.top === 0) return `${main},"top_logprobs":[]}`
  const alternatives = listTop(token, style.top).map(({ id, logprob }) => {
    const entry = style.asTokenIds ? toTokenJson(`token_id:${id}`) : id === token.id ? own : entryOf(id, ids, texts)
    return `${entry.head}${printLogprob(logprob)}${entry.tail}}`
  })
  return `${main},"top_logprobs":[${alternatives.join(',')}]}`
}

/**
 * An entry of `/inference/v1/generate`: ids as names, no bytes, and always the sampled token among the alternatives.
 */
export function tokenLogprob(token: SampledToken, top: number): string {
  const alternatives = listTop(token, top === -1 ? -1 : Math.max(top, 1)).map(
    ({ id, logprob }) => `{"token":"token_id:${id}","logprob":${printLogprob(logprob)},"bytes":null}`,
  )
  return `{"token":"token_id:${token.id}","logprob":${printLogprob(token.logprob)},"bytes":null,"top_logprobs":[${alternatives.join(',')}]}`
}

/** Collects log probabilities in the older format of `/v1/completions`. */
export class CompletionLogprobs {
  readonly #texts: TokenTexts
  readonly #style: LogprobStyle
  #tokens: string[] = []
  #logprobs: string[] = []
  #tops: string[] = []
  #offsets: number[] = []
  #offset: number

  constructor(texts: TokenTexts, style: LogprobStyle, initialOffset = 0) {
    this.#texts = texts
    this.#style = style
    this.#offset = initialOffset
  }

  /** The token is the last of `ids`. */
  push(token: SampledToken, ids: readonly number[]): void {
    const name = this.#name(token.id, ids)
    this.#tokens.push(JSON.stringify(name))
    this.#logprobs.push(printLogprob(token.logprob))
    // One more than requested: the sampled token does not count.
    const top = this.#style.top === -1 ? -1 : this.#style.top + 1
    const byName = new Map(listTop(token, top).map(({ id, logprob }) => [this.#name(id, ids), logprob]))
    this.#tops.push(`{${[...byName].map(([key, value]) => `${JSON.stringify(key)}:${printLogprob(value)}`).join(',')}}`)
    this.#offsets.push(this.#offset)
    this.#offset += name.length
  }

  toJson(): string {
    return `{"text_offset":[${this.#offsets.join(',')}],"token_logprobs":[${this.#logprobs.join(',')}],"tokens":[${this.#tokens.join(',')}],"top_logprobs":[${this.#tops.join(',')}]}`
  }

  #name(id: number, ids: readonly number[]): string {
    return this.#style.asTokenIds ? `token_id:${id}` : textOf(id, ids, this.#texts)
  }
}

function entryOf(id: number, ids: readonly number[], texts: TokenTexts): TokenJson {
  return texts.wholeText(id) === undefined ? toTokenJson(textOf(id, ids, texts)) : texts.json(id)
}

/** Replaces the last of `ids` by `id`. A character has at most four bytes, so only the last tokens matter. */
function textOf(id: number, ids: readonly number[], texts: TokenTexts): string {
  return texts.wholeText(id) ?? texts.textInContext(id, ids.slice(-5, -1))
}

function listTop(token: SampledToken, count: number): { id: number; logprob: number }[] {
  const listed = [{ id: token.id, logprob: token.logprob }]
  for (const entry of token.top) {
    if (count >= 0 && listed.length >= count) break
    if (entry.id !== token.id) listed.push(entry)
  }
  return listed
}

function printLogprob(value: number): string {
  return String(value >= LEAST ? value : LEAST)
}
