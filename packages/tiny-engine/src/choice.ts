import type { SampledToken, SamplingParams } from './policies/policy.ts'
import { IncrementalDecoder, type Tokenizer } from './tokenizer.ts'

export type FinishReason = 'stop' | 'length' | 'abort'

export interface Finish {
  reason: FinishReason
  /** The stop string or stop id that ended the choice; null for the ordinary end of turn. */
  stopReason: string | number | null
}

export interface ChoiceOptions {
  sampling: SamplingParams
  /** Maximum length of the answer: context length minus prompt. */
  maxLength: number
  includeStop: boolean
  skipSpecialTokens: boolean
}

/** A policy may mark its last token, so that the finish reason comes with that token, as in vLLM. */
export type MaybeLastToken = SampledToken & { last?: boolean }

/**
 * One answer during sampling: ids and log probabilities immediately, text as soon as no stop string can remove it, and the
 * finish reason. Follows vLLM's scheduler and detokenizer in their order: stop ids, then length, then stop strings, whose
 * result takes precedence.
 */
export class Choice {
  readonly index: number
  readonly ids: number[] = []
  readonly logprobs: number[] = []
  /** All text released so far. */
  text = ''
  finish: Finish | undefined
  readonly #options: ChoiceOptions
  readonly #stopIds: ReadonlySet<number>
  readonly #holdBack: number
  readonly #window: number
  /** The end of the text, in which a stop string may have begun. */
  #recent = ''
  /** Text that is not yet released. */
  #pending = ''
  readonly #decoder: IncrementalDecoder
  /** The decoder may hold bytes of an unfinished character. */
  #midCharacter = false
  readonly #texts: TokenTexts

  constructor(index: number, texts: TokenTexts, options: ChoiceOptions) {
    this.index = index
    this.#texts = texts
    this.#options = options
    this.#stopIds = new Set(options.sampling.stopTokenIds)
    this.#decoder = new IncrementalDecoder(texts.tokenizer, { skipSpecialTokens: options.skipSpecialTokens })
    const longest = Math.max(1, ...options.sampling.stop.map((stop) => stop.length)) - 1
    this.#window = longest
    this.#holdBack = options.includeStop ? 0 : longest
  }

  /** Adds the next token. Returns the released text and sets `finish` with the last token. */
  push(token: MaybeLastToken): string {
    this.ids.push(token.id)
    this.logprobs.push(token.logprob)
    const stopped = this.#checkTokenStop(token)
    const skipped = stopped && this.finish?.reason === 'stop' && !this.#options.includeStop
    const text = skipped ? '' : this.#decode(token.id)
    if (this.#options.sampling.stop.length === 0) {
      this.text += text
      return text
    }
    this.#pending += text
    if (text !== '' && this.ids.length > this.#options.sampling.minTokens) this.#checkStopStrings(text)
    else this.#remember(text)
    return this.#release()
  }

  /** Must be called if the policy returned no further token or the choice was aborted. */
  end(reason?: FinishReason): string {
    const endedItself = this.ids.at(-1) === this.#texts.tokenizer.eosId && !this.#options.sampling.ignoreEos
    this.finish ??= { reason: reason ?? (endedItself ? 'stop' : 'length'), stopReason: null }
    return this.#release()
  }

  #checkTokenStop(token: MaybeLastToken): boolean {
    const { sampling, maxLength } = this.#options
    const count = this.ids.length
    if (count >= sampling.minTokens) {
      if (token.id === this.#texts.tokenizer.eosId && !sampling.ignoreEos) {
        this.finish = { reason: 'stop', stopReason: null }
        return true
      }
      if (this.#stopIds.has(token.id)) {
        this.finish = { reason: 'stop', stopReason: token.id }
        return true
      }
    }
    if (count >= sampling.maxTokens || count >= maxLength || token.last === true) {
      this.finish = { reason: 'length', stopReason: null }
      return true
    }
    return false
  }

  #decode(id: number): string {
    if (this.#options.skipSpecialTokens && this.#texts.tokenizer.isSpecial(id)) return ''
    const whole = this.#texts.wholeText(id)
    if (whole !== undefined && !this.#midCharacter) return whole
    this.#midCharacter = whole === undefined
    return this.#decoder.push(id)
  }

  #checkStopStrings(text: string): void {
    const searched = this.#recent + text
    let end = Infinity
    let found: { stop: string; start: number } | undefined
    for (const stop of this.#options.sampling.stop) {
      // Only matches that end in the new text count: earlier text was searched before.
      const start = searched.indexOf(stop, Math.max(0, this.#recent.length - stop.length + 1))
      if (start >= 0 && start + stop.length < end) {
        found = { stop, start }
        end = start + stop.length
      }
    }
    if (found === undefined) {
      this.#remember(text)
      return
    }
    const cutAt = this.#options.includeStop ? end : found.start
    this.#pending = this.#pending.slice(0, this.#pending.length - (searched.length - cutAt))
    this.finish = { reason: 'stop', stopReason: found.stop }
  }

  #remember(text: string): void {
    const recent = this.#recent + text
    this.#recent = recent.slice(Math.max(0, recent.length - this.#window))
  }

  #release(): string {
    let length = this.finish ? this.#pending.length : Math.max(0, this.#pending.length - this.#holdBack)
    // Half a surrogate pair is not text.
    if (length < this.#pending.length && isHighSurrogate(this.#pending.charCodeAt(length - 1))) length--
    const released = this.#pending.slice(0, length)
    this.#pending = this.#pending.slice(length)
    this.text += released
    return released
  }
}

function isHighSurrogate(code: number): boolean {
  return code >= 0xd800 && code <= 0xdbff
}

/** Cache of tokens as text and as JSON. Bounded by the vocabulary. */
export class TokenTexts {
  readonly tokenizer: Tokenizer
  readonly #wholeTexts: (string | undefined)[]
  readonly #entries: (TokenJson | undefined)[]

  constructor(tokenizer: Tokenizer) {
    this.tokenizer = tokenizer
    this.#wholeTexts = Array.from({ length: tokenizer.vocabularySize })
    this.#entries = Array.from({ length: tokenizer.vocabularySize })
  }

  /** Returns the text of a token whose bytes are whole characters; undefined for a token that needs its neighbours. */
  wholeText(id: number): string | undefined {
    const known = this.#wholeTexts[id]
    if (known !== undefined) return known === NOT_WHOLE ? undefined : known
    const text = this.tokenizer.tokenText(id)
    const isWhole = !text.includes('\uFFFD') || Buffer.compare(Buffer.from(text), this.tokenizer.bytesOf(id)) === 0
    this.#wholeTexts[id] = isWhole ? text : NOT_WHOLE
    return isWhole ? text : undefined
  }

  /** Returns the JSON around the log probability of a token with whole characters. */
  json(id: number): TokenJson {
    return (this.#entries[id] ??= toTokenJson(this.tokenizer.tokenText(id)))
  }

  /**
   * Returns the token's text in its context, as vLLM reports it: empty while a character is unfinished, the whole
   * character with its last token.
   */
  textInContext(id: number, before: readonly number[]): string {
    const text = this.tokenizer.tokenText(id)
    if (!text.endsWith('\uFFFD')) return text
    for (let count = 1; count <= Math.min(4, before.length); count++) {
      const context = before.slice(-count)
      const full = this.tokenizer.decode([...context, id])
      if (full.endsWith('\uFFFD')) continue
      let clean = context.length
      while (clean > 0 && this.tokenizer.tokenText(context[clean - 1]!).endsWith('\uFFFD')) clean--
      const prefix = this.tokenizer.decode(context.slice(0, clean))
      return full.startsWith(prefix) ? full.slice(prefix.length) : full
    }
    return ''
  }
}

/** `{"token": "x", "logprob": ` and `, "bytes": [...]`. */
export interface TokenJson {
  head: string
  tail: string
}

export function toTokenJson(token: string, bytesOf = token): TokenJson {
  return {
    head: `{"token":${JSON.stringify(token)},"logprob":`,
    tail: `,"bytes":[${[...Buffer.from(bytesOf)].join(',')}]`,
  }
}

/** Not the text of any token: a lone surrogate is never decoded. */
const NOT_WHOLE = '\uD800'
