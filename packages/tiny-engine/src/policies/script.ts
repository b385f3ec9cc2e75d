import { setTimeout as sleep } from 'node:timers/promises'
import { EngineError } from '../errors.ts'
import { EngineSetupError } from '../setup-error.ts'
import type { Tokenizer } from '../tokenizer.ts'
import type { Conversation, Fault, Generation, GenerationRequest, Policy, SampledToken } from './policy.ts'
import { MARKER, type FaultStep, type Script, type Step } from './script-schema.ts'

/** Returns log probabilities of `ids` after a prompt, by a model that did not sample them. */
export type Score = (promptIds: Int32Array, ids: Int32Array) => Promise<Float32Array>

export interface ScriptPolicyDeps {
  tokenizer: Tokenizer
  /** Required by scripts with `logprobs: model`. */
  score?: Score
}

/** Maximum number of fault counters (steps and nonces); the oldest are evicted. */
const MAX_FAULT_COUNTERS = 10_000

/**
 * Plays a script instead of a model. Ignores sampling parameters. Encodes the turns with the model's tokenizer in the format of
 * its chat template, so that decoding and parsing return the text of the script.
 */
export function createScriptPolicy(script: Script, deps: ScriptPolicyDeps): Policy {
  if (script.logprobs === 'model' && deps.score === undefined) {
    throw new EngineSetupError('The script requires log probabilities of the model, but no model is loaded.')
  }
  const encode = createTurnEncoder(deps.tokenizer)
  const faultsTaken = new Map<string, number>()
  let arrivals = 0

  return {
    name: 'script',
    async start(request) {
      const place = findPlace(conversationOf(request, script, deps.tokenizer))
      const chosen = chooseStep(script, place, () => arrivals++)
      const fault = takeFault(chosen, faultsTaken)
      const ids = encode(chosen.step)
      const isScored = script.logprobs === 'model' && fault?.kind !== 'status' && ids.length > 0
      const scored = isScored
        ? await deps.score?.(request.promptIds, ids.subarray(0, request.sampling.maxTokens))
        : undefined
      const generation: Generation = {
        sample: () => new ScriptedTokens(chosen.step, ids, scored, request, deps.tokenizer.vocabularySize),
      }
      return fault === undefined ? generation : { ...generation, fault }
    },
    async [Symbol.asyncDispose]() {},
  }
}

/** Position of a conversation: the scenario of its last marker, and the number of assistant turns since. */
export interface Place {
  scenario: string
  nonce: string
  turn: number
}

/** Undefined if no user message has a marker. */
export function findPlace(conversation: Conversation | undefined): Place | undefined {
  const messages = conversation?.messages ?? []
  for (let i = messages.length - 1; i >= 0; i--) {
    const message = messages[i]!
    const marker = message['role'] === 'user' ? [...textOf(message['content']).matchAll(MARKER)].at(-1) : undefined
    if (marker === undefined) continue
    const turn = messages.slice(i + 1).filter(({ role }) => role === 'assistant').length
    return { scenario: marker.groups?.['name'] ?? '', nonce: marker.groups?.['nonce'] ?? '', turn }
  }
  return undefined
}

export interface ChosenStep {
  step: Step
  /** Identifies the counters of its faults. */
  key: string
}

/** `takeNumber` numbers requests without a marker in order of arrival. Throws if the script has no turn. */
export function chooseStep(script: Script, place: Place | undefined, takeNumber: () => number): ChosenStep {
  if (place !== undefined && Object.hasOwn(script.scenarios, place.scenario)) {
    const steps = script.scenarios[place.scenario] ?? []
    const index = place.turn < steps.length ? place.turn : steps.findLastIndex((step) => step.tool_calls.length === 0)
    const step = steps[index]
    if (step !== undefined) return { step, key: `${place.scenario}#${place.nonce}/${index}` }
  }
  if (place === undefined && script.order !== undefined) {
    const number = takeNumber()
    const index = orderIndex(number, script.order.length, script.repeat)
    const step = script.order[index]
    if (step !== undefined) return { step, key: `order/${index}` }
    throw new EngineError(
      400,
      `\`order\` of the script has ${script.order.length} turns, but this is request ${number + 1}.`,
    )
  }
  if (script.default !== undefined) return { step: script.default, key: `default#${place?.nonce ?? ''}` }
  const wanted = place === undefined ? 'a request without a marker' : `turn ${place.turn + 1} of ${place.scenario}`
  throw new EngineError(400, `The script has no turn for ${wanted}.`)
}

function orderIndex(number: number, length: number, repeat: Script['repeat']): number {
  switch (repeat) {
    case 'last':
      return Math.min(number, length - 1)
    case 'cycle':
      return number % length
    case 'error':
      return number
  }
}

function takeFault({ step, key }: ChosenStep, taken: Map<string, number>): Fault | undefined {
  const faults = Array.isArray(step.fault) ? step.fault : [step.fault]
  for (const [index, fault] of faults.entries()) {
    if (fault.times === undefined) return toFault(fault)
    const counter = `${key}/${index}`
    const count = taken.get(counter) ?? 0
    if (count >= fault.times) continue
    taken.set(counter, count + 1)
    if (taken.size > MAX_FAULT_COUNTERS) taken.delete(taken.keys().next().value ?? '')
    return toFault(fault)
  }
  return undefined
}

export function toFault(fault: FaultStep): Fault {
  switch (fault.kind) {
    case 'status': {
      const { kind, status, message, retry_after_seconds: retryAfterSeconds } = fault
      return { kind, status, message, retryAfterSeconds }
    }
    case 'reset':
      return { kind: fault.kind, afterTokens: fault.after_tokens }
    case 'stall':
      return { kind: fault.kind, ms: fault.ms, afterTokens: fault.after_tokens }
    case 'cut':
      return { kind: fault.kind, afterTokens: fault.after_tokens }
    case 'malformed':
      return { kind: fault.kind, afterTokens: fault.after_tokens }
    case 'omit':
      return { kind: fault.kind, fields: fault.fields }
    case 'wrong-length':
      return { kind: fault.kind, field: fault.field }
  }
}

/** Returns a turn in the model's format, without the end-of-turn token. */
export function toTurnText(step: Pick<Step, 'reasoning' | 'text' | 'tool_calls'>): string {
  const thinking = step.reasoning === undefined ? '' : `<think>\n${step.reasoning}\n</think>\n\n`
  const calls = step.tool_calls.map((call) => {
    const args = typeof call.arguments === 'string' ? call.arguments : printArguments(call.arguments)
    return `<tool_call>\n{"name": "${call.name}", "arguments": ${args}}\n</tool_call>`
  })
  return thinking + [...(step.text ? [step.text] : []), ...calls].join('\n')
}

/**
 * Serializes JSON with Python's spaces, as the chat template does. Escapes the slash of a closing tag inside a string, which
 * would end the call; the value stays the same.
 */
export function printArguments(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(printArguments).join(', ')}]`
  if (typeof value === 'object' && value !== null) {
    const members = Object.entries(value).map(([key, member]) => `${printArguments(key)}: ${printArguments(member)}`)
    return `{${members.join(', ')}}`
  }
  return JSON.stringify(value).replaceAll('</tool_call>', String.raw`<\/tool_call>`)
}

function createTurnEncoder(tokenizer: Tokenizer): (step: Step) => Int32Array {
  const encoded = new WeakMap<Step, Int32Array>()
  let ordinary: number[] | undefined
  return (step) => {
    let ids = encoded.get(step)
    if (ids === undefined) {
      const calls = step.tool_calls.length === 0 ? '' : `\n${toTurnText({ tool_calls: step.tool_calls })}`
      const words =
        step.tokens === undefined
          ? tokenizer.encode(toTurnText(step), { parseSpecial: false })
          : [
              ...loadIds((ordinary ??= ordinaryIds(tokenizer)), step.tokens),
              ...tokenizer.encode(calls, { parseSpecial: false }),
            ]
      ids = Int32Array.from(step.finish === 'stop' ? [...words, tokenizer.eosId] : words)
      encoded.set(step, ids)
    }
    return ids
  }
}

/** Returns tokens that are plain words: not parts of characters, tags or JSON. */
function ordinaryIds(tokenizer: Tokenizer): number[] {
  const ids = Array.from({ length: tokenizer.vocabularySize }, (_, id) => id)
  return ids.filter((id) => !tokenizer.isSpecial(id) && /^ ?[A-Za-z]+$/.test(tokenizer.tokenText(id)))
}

function loadIds(ordinary: readonly number[], count: number): number[] {
  let state = 0x2545f491
  return Array.from({ length: count }, () => {
    state = mix(state, count)
    return ordinary[(state >>> 0) % ordinary.length]!
  })
}

/** Returns the conversation of the request. For a request with ids only, parses it from the rendered prompt. */
function conversationOf(request: GenerationRequest, script: Script, tokenizer: Tokenizer): Conversation | undefined {
  if (request.conversation !== undefined || Object.keys(script.scenarios).length === 0) return request.conversation
  return { messages: readChatml(tokenizer.decode(request.promptIds)), tools: [] }
}

/** Parses the messages of a rendered prompt, without the answer to be written. */
export function readChatml(text: string): { role: string; content: string }[] {
  return text
    .split('<|im_start|>')
    .slice(1)
    .filter((block) => block.includes('<|im_end|>'))
    .map((block) => {
      const content = block.slice(block.indexOf('\n') + 1, block.indexOf('<|im_end|>'))
      const role = block.slice(0, block.indexOf('\n'))
      // The template renders tool results as user messages.
      return { role: role === 'user' && content.startsWith('<tool_response>') ? 'tool' : role, content }
    })
}

function textOf(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return ''
  return content
    .map((part: unknown) => (typeof part === 'object' && part !== null && 'text' in part ? String(part.text) : ''))
    .join('\n')
}

/** Plays a turn with its timing. Not an async generator, which needs several iterations of the event loop per token. */
class ScriptedTokens implements AsyncIterableIterator<SampledToken> {
  readonly #step: Step
  readonly #ids: Int32Array
  readonly #scored: Float32Array | undefined
  readonly #signal: AbortSignal
  readonly #top: number
  readonly #vocabularySize: number
  #hash: number
  #at = 0
  /** Due time of the first token in milliseconds. Later tokens are relative to it, so that delays do not add up. */
  #startedAt: number | undefined

  constructor(
    step: Step,
    ids: Int32Array,
    scored: Float32Array | undefined,
    request: GenerationRequest,
    vocabularySize: number,
  ) {
    this.#step = step
    this.#ids = ids
    this.#scored = scored
    this.#signal = request.signal
    this.#top = request.sampling.topLogprobs === -1 ? vocabularySize : request.sampling.topLogprobs
    this.#vocabularySize = vocabularySize
    this.#hash = hashIds(request.promptIds)
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  next(): Promise<IteratorResult<SampledToken>> {
    const wait = this.#dueInMs()
    if (wait > 0 || this.#signal.aborted) return this.#after(wait)
    return Promise.resolve(this.#take())
  }

  return(): Promise<IteratorResult<SampledToken>> {
    this.#at = this.#ids.length
    return Promise.resolve({ value: undefined, done: true })
  }

  #take(): IteratorResult<SampledToken> {
    this.#signal.throwIfAborted()
    if (this.#at >= this.#ids.length) return { value: undefined, done: true }
    const id = this.#ids[this.#at]!
    this.#hash = mix(this.#hash, id)
    const logprob = this.#scored?.[this.#at] ?? syntheticLogprob(this.#hash)
    const top = this.#top === 0 ? NO_TOP : syntheticTop(id, logprob, this.#top, this.#vocabularySize)
    this.#at += 1
    // Marked, so that the finish reason of a truncated turn comes with its last token.
    const token: SampledToken & { last: boolean } = { id, logprob, rank: 0, top, last: this.#at === this.#ids.length }
    return { value: token, done: false }
  }

  #dueInMs(): number {
    const { first_token_ms: first, per_token_ms: each } = this.#step
    if (first === 0 && each === 0) return 0
    const now = performance.now()
    this.#startedAt ??= now
    return this.#startedAt + first + this.#at * each - now
  }

  async #after(ms: number): Promise<IteratorResult<SampledToken>> {
    // An abort wakes it up, and #take reports the abort.
    await sleep(ms, undefined, { signal: this.#signal }).catch(() => {})
    return this.#take()
  }
}

const NO_TOP: readonly never[] = []

function hashIds(ids: Int32Array): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < ids.length; i++) hash = mix(hash, ids[i]!)
  return hash
}

function mix(hash: number, id: number): number {
  let mixed = Math.imul(hash ^ (id + 0x9e3779b9), 0x85ebca6b)
  mixed ^= mixed >>> 13
  mixed = Math.imul(mixed, 0xc2b2ae35)
  return mixed ^ (mixed >>> 16)
}

/**
 * Returns a synthetic log probability between -6 and 0 that depends only on the ids before and the id itself, mostly near 0
 * like a model's, and exact in 32 bits like an engine's.
 */
export function syntheticLogprob(hash: number): number {
  const uniform = (hash >>> 0) / 2 ** 32
  return -Math.fround(6 * uniform * uniform * uniform)
}

/**
 * Returns synthetic alternatives: the sampled token is the likeliest; each other token is half as likely as the one before.
 */
function syntheticTop(id: number, logprob: number, count: number, vocabularySize: number) {
  const probability = Math.exp(logprob)
  const rest = Math.log(Math.max(Math.min(probability, 1 - probability), Number.MIN_VALUE))
  return Array.from({ length: Math.min(count, vocabularySize) }, (_, i) =>
    i === 0 ? { id, logprob } : { id: (id + i) % vocabularySize, logprob: Math.fround(rest - i * Math.LN2) },
  )
}
