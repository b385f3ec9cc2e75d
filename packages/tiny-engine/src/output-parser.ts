import { isJson } from './json-text.ts'

/**
 * Splits sampled text into reasoning (`<think>` at the start), content and Hermes tool calls while it is sampled. The result
 * does not depend on how the text is divided into pieces, and sampled text is not changed: arguments are the exact substring
 * between `"arguments": ` and the `}` that closes the call, including invalid JSON.
 *
 * Removes only what the chat template adds, so that rendering the parsed turn gives the sampled text if the model wrote the
 * template's format:
 * - one newline after `<think>`, one before `</think>`, up to two after it, and white space in front of `<think>`;
 * - one newline between content and `<tool_call>`; white space alone there is not content;
 * - white space between calls, and after the last one.
 * Text without tags passes unchanged.
 */
export type OutputPart =
  | { type: 'reasoning'; text: string }
  | { type: 'content'; text: string }
  /** A call whose name is known; its arguments follow with the same index. */
  | { type: 'tool-call'; index: number; name: string }
  | { type: 'arguments'; index: number; text: string }

export interface OutputParserOptions {
  /** Whether a leading `<think>` block is reasoning or content. */
  reasoning: boolean
  /** Whether `<tool_call>` blocks are calls or content. */
  tools: boolean
}

export interface ParsedOutput {
  reasoning: string
  content: string
  toolCalls: { name: string; arguments: string }[]
}

const THINK_OPEN = '<think>'
const THINK_CLOSE = '</think>'
const CALL_OPEN = '<tool_call>'
const CALL_CLOSE = '</tool_call>'

/** A longer head is parsed once, at the end of the block, instead of after every piece. */
const MAX_STREAMED_HEAD = 4096

type State = 'start' | 'reasoning-start' | 'reasoning' | 'reasoning-end' | 'content' | 'call-head' | 'call-arguments'

export class OutputParser {
  readonly #options: OutputParserOptions
  #state: State
  /** Text that is not yet returned, because its kind depends on what follows. */
  #held = ''
  #parts: OutputPart[] = []
  #calls = 0
  /** Whether this content has contained anything but white space. */
  #contentBegun = false
  /** Text between content and the current block; content if the block is not a call. */
  #separator = ''
  /** Whether the head cannot be parsed, so that the parser waits for the end of the block. */
  #headUnreadable = false
  /** Length of #held that was already searched for the end of the block. */
  #searched = 0
  /** Returned part of the current call's arguments. */
  #givenArguments = ''

  constructor(options: OutputParserOptions) {
    this.#options = options
    this.#state = options.reasoning ? 'start' : 'content'
  }

  /** Whether the text so far ends inside the think block. */
  get inReasoning(): boolean {
    return this.#state === 'reasoning' || this.#state === 'reasoning-start'
  }

  push(text: string): OutputPart[] {
    if (text === '') return []
    if (this.#state === 'content' && !this.#options.tools) return [{ type: 'content', text: this.#takeHeld() + text }]
    this.#held += text
    while (this.#step());
    return this.#takeParts()
  }

  /** Ends the text and returns what was held back. An unfinished call is returned as far as it was sampled. */
  finish(): OutputPart[] {
    const held = this.#takeHeld()
    switch (this.#state) {
      case 'start':
        this.#give('content', held)
        break
      case 'reasoning-start':
      case 'reasoning':
        this.#give('reasoning', held)
        break
      case 'reasoning-end':
        break
      case 'content':
        if (this.#contentBegun || this.#calls === 0 || held.trim() !== '') this.#give('content', held)
        break
      case 'call-head':
        this.#endHead(held, false)
        break
      case 'call-arguments':
        this.#endArguments(held)
        break
    }
    this.#state = 'content'
    return this.#takeParts()
  }

  /** Parses #held as far as possible; returns false if it needs more text. */
  #step(): boolean {
    switch (this.#state) {
      case 'start':
        return this.#readStart()
      case 'reasoning-start':
        if (this.#held === '') return false
        if (this.#held.startsWith('\n')) this.#held = this.#held.slice(1)
        this.#state = 'reasoning'
        return true
      case 'reasoning':
        return this.#readReasoning()
      case 'reasoning-end':
        return this.#readReasoningEnd()
      case 'content':
        return this.#readContent()
      case 'call-head':
        return this.#readHead()
      case 'call-arguments':
        return this.#readArguments()
    }
  }

  #readStart(): boolean {
    const text = this.#held.trimStart()
    if (text.startsWith(THINK_OPEN)) {
      this.#held = text.slice(THINK_OPEN.length)
      this.#state = 'reasoning-start'
      return true
    }
    if (THINK_OPEN.startsWith(text)) return false
    this.#state = 'content'
    return true
  }

  #readReasoning(): boolean {
    const end = this.#held.indexOf(THINK_CLOSE)
    if (end >= 0) {
      this.#give('reasoning', withoutLast(this.#held.slice(0, end), '\n'))
      this.#held = this.#held.slice(end + THINK_CLOSE.length)
      this.#state = 'reasoning-end'
      return true
    }
    let keepFrom = this.#held.length - overlap(this.#held, THINK_CLOSE)
    if (this.#held[keepFrom - 1] === '\n') keepFrom--
    this.#give('reasoning', this.#held.slice(0, keepFrom))
    this.#held = this.#held.slice(keepFrom)
    return false
  }

  #readReasoningEnd(): boolean {
    if (this.#held === '' || this.#held === '\n') return false
    if (this.#held.startsWith('\n')) this.#held = this.#held.slice(this.#held[1] === '\n' ? 2 : 1)
    this.#state = 'content'
    return this.#held !== ''
  }

  #readContent(): boolean {
    if (!this.#options.tools) {
      this.#give('content', this.#takeHeld())
      return false
    }
    const start = this.#held.indexOf(CALL_OPEN)
    if (start >= 0) {
      const before = this.#held.slice(0, start)
      if (!this.#contentBegun && before.trim() === '') {
        this.#separator = before
      } else {
        this.#separator = before.endsWith('\n') ? '\n' : ''
        this.#give('content', withoutLast(before, '\n'))
      }
      this.#held = this.#held.slice(start + CALL_OPEN.length)
      this.#state = 'call-head'
      this.#headUnreadable = false
      this.#searched = 0
      return true
    }
    let keepFrom = this.#held.length - overlap(this.#held, CALL_OPEN)
    if (this.#held[keepFrom - 1] === '\n') keepFrom--
    if (!this.#contentBegun && this.#held.slice(0, keepFrom).trim() === '') return false
    this.#give('content', this.#held.slice(0, keepFrom))
    this.#contentBegun = true
    this.#held = this.#held.slice(keepFrom)
    return false
  }

  #readHead(): boolean {
    const end = this.#findCallEnd()
    if (end >= 0) {
      const body = this.#held.slice(0, end)
      const after = this.#held.slice(end + CALL_CLOSE.length)
      const head = this.#headUnreadable ? undefined : scanHead(body)
      if (head?.kind === 'arguments') {
        this.#beginArguments(head)
        this.#held = this.#held.slice(head.start)
        return true
      }
      this.#held = after
      this.#endHead(body, true)
      this.#state = 'content'
      return true
    }
    if (this.#headUnreadable) return false
    const head = scanHead(this.#held)
    if (head.kind === 'arguments') {
      // One space after the colon belongs to the template; it may still follow.
      if (head.start === this.#held.length && this.#held.endsWith(':')) return false
      this.#beginArguments(head)
      this.#held = this.#held.slice(head.start)
      return true
    }
    this.#headUnreadable = head.kind === 'unreadable' || this.#held.length > MAX_STREAMED_HEAD
    return false
  }

  #beginArguments(head: { name: string }): void {
    this.#giveCall(head.name)
    this.#searched = 0
    this.#givenArguments = ''
    this.#state = 'call-arguments'
  }

  /**
   * The block ended before its arguments could be streamed: it has no arguments, or its name follows them or is
   * missing.
   */
  #endHead(body: string, closed: boolean): void {
    const head = scanHead(body)
    if (head.kind === 'arguments') {
      this.#beginArguments(head)
      const text = body.slice(head.start)
      if (closed) this.#giveArguments(withoutLast(text.trimEnd(), '}'))
      else this.#endArguments(text)
      return
    }
    const call = head.name === undefined ? readCall(body) : { name: head.name, arguments: '' }
    if (call) {
      const index = this.#giveCall(call.name)
      if (call.arguments !== '') this.#parts.push({ type: 'arguments', index, text: call.arguments })
      return
    }
    this.#give('content', this.#separator + CALL_OPEN + body + (closed ? CALL_CLOSE : ''))
    this.#contentBegun = true
  }

  #readArguments(): boolean {
    const end = this.#findCallEnd()
    if (end >= 0) {
      this.#giveArguments(withoutLast(this.#held.slice(0, end).trimEnd(), '}'))
      this.#held = this.#held.slice(end + CALL_CLOSE.length)
      this.#state = 'content'
      return true
    }
    const keep = this.#held.slice(0, this.#held.length - overlap(this.#held, CALL_CLOSE)).trimEnd()
    const given = withoutLast(keep, '}').length
    this.#giveArguments(this.#held.slice(0, given))
    this.#held = this.#held.slice(given)
    this.#searched = 0
    return false
  }

  #endArguments(held: string): void {
    const text = held.slice(0, held.length - overlap(held, CALL_CLOSE))
    const withoutBrace = withoutLast(text.trimEnd(), '}')
    const complete = text.trimEnd() !== withoutBrace && isJson(this.#givenArguments + withoutBrace)
    this.#giveArguments(complete ? withoutBrace : text)
  }

  #findCallEnd(): number {
    const end = this.#held.indexOf(CALL_CLOSE, Math.max(0, this.#searched - CALL_CLOSE.length))
    this.#searched = this.#held.length
    return end
  }

  #giveCall(name: string): number {
    const index = this.#calls++
    this.#contentBegun = false
    this.#separator = ''
    this.#parts.push({ type: 'tool-call', index, name })
    return index
  }

  #giveArguments(text: string): void {
    if (text === '') return
    this.#givenArguments += text
    this.#parts.push({ type: 'arguments', index: this.#calls - 1, text })
  }

  #give(type: 'reasoning' | 'content', text: string): void {
    if (text !== '') this.#parts.push({ type, text })
  }

  #takeHeld(): string {
    const held = this.#held
    this.#held = ''
    return held
  }

  #takeParts(): OutputPart[] {
    const parts = this.#parts
    this.#parts = []
    return parts
  }
}

/** Parses a whole text. */
export function parseOutput(text: string, options: OutputParserOptions): ParsedOutput {
  const parser = new OutputParser(options)
  return joinParts([...parser.push(text), ...parser.finish()])
}

export function joinParts(parts: Iterable<OutputPart>): ParsedOutput {
  const output: ParsedOutput = { reasoning: '', content: '', toolCalls: [] }
  for (const part of parts) {
    switch (part.type) {
      case 'reasoning':
        output.reasoning += part.text
        break
      case 'content':
        output.content += part.text
        break
      case 'tool-call':
        output.toolCalls.push({ name: part.name, arguments: '' })
        break
      case 'arguments':
        output.toolCalls[part.index]!.arguments += part.text
        break
    }
  }
  return output
}

type Head =
  | { kind: 'arguments'; name: string; start: number }
  /** Whether more text may make it parsable. */
  | { kind: 'open'; name?: string }
  | { kind: 'unreadable'; name?: string }

/** Parses the members of `{"name": "x", "arguments": ` up to the start of the arguments. */
function scanHead(text: string): Head {
  let name: string | undefined
  let at = skipSpace(text, 0)
  if (at === text.length) return { kind: 'open' }
  if (text[at] !== '{') return { kind: 'unreadable' }
  at = skipSpace(text, at + 1)
  while (at < text.length) {
    const keyEnd = endOfValue(text, at)
    if (text[at] !== '"') return { kind: 'unreadable', name }
    if (keyEnd < 0) return { kind: 'open', name }
    const key = readString(text.slice(at, keyEnd))
    at = skipSpace(text, keyEnd)
    if (at === text.length) return { kind: 'open', name }
    if (text[at] !== ':') return { kind: 'unreadable', name }
    if (key === 'arguments') {
      if (name === undefined) return { kind: 'unreadable' }
      return { kind: 'arguments', name, start: text[at + 1] === ' ' ? at + 2 : at + 1 }
    }
    at = skipSpace(text, at + 1)
    const valueEnd = endOfValue(text, at)
    if (valueEnd < 0) return { kind: 'open', name }
    if (key === 'name') name = readString(text.slice(at, valueEnd)) || undefined
    at = skipSpace(text, valueEnd)
    if (at === text.length) return { kind: 'open', name }
    if (text[at] !== ',') return { kind: 'unreadable', name }
    at = skipSpace(text, at + 1)
  }
  return { kind: 'open', name }
}

/** Parses a complete block with members in any order. Undefined if it has no name. */
function readCall(body: string): { name: string; arguments: string } | undefined {
  if (!isJson(body)) return undefined
  // The text is valid JSON, so every member has an end.
  let name: string | undefined
  let args = ''
  let at = skipSpace(body, 0)
  if (body[at] !== '{') return undefined
  at = skipSpace(body, at + 1)
  while (body[at] === '"') {
    const keyEnd = endOfValue(body, at)
    const key = readString(body.slice(at, keyEnd))
    const valueStart = skipSpace(body, skipSpace(body, keyEnd) + 1)
    const valueEnd = endOfValue(body, valueStart)
    if (valueEnd < 0) return undefined
    if (key === 'name') name = readString(body.slice(valueStart, valueEnd))
    if (key === 'arguments') args = body.slice(valueStart, valueEnd)
    at = skipSpace(body, skipSpace(body, valueEnd) + 1)
  }
  return name ? { name, arguments: args } : undefined
}

/** Returns the end of the JSON value that begins at `at`; -1 if unknown. Matches brackets without validation. */
function endOfValue(text: string, at: number): number {
  let depth = 0
  for (let i = at; i < text.length; i++) {
    const char = text[i]!
    if (char === '"') {
      i = endOfString(text, i)
      if (i < 0) return -1
      if (depth === 0) return i + 1
    } else if (char === '{' || char === '[') {
      depth++
    } else if (char === '}' || char === ']') {
      if (depth === 0) return i
      if (--depth === 0) return i + 1
    } else if (depth === 0 && (char === ',' || isSpace(char))) {
      return i
    }
  }
  return -1
}

/** Returns the index of the quote that closes the string opened at `at`; -1 if it is open. */
function endOfString(text: string, at: number): number {
  for (let i = at + 1; i < text.length; i++) {
    if (text[i] === '\\') i++
    else if (text[i] === '"') return i
  }
  return -1
}

function readString(quoted: string): string {
  try {
    const value: unknown = JSON.parse(quoted)
    return typeof value === 'string' ? value : ''
  } catch {
    return ''
  }
}

function skipSpace(text: string, at: number): number {
  while (at < text.length && isSpace(text[at]!)) at++
  return at
}

function isSpace(char: string): boolean {
  return char === ' ' || char === '\n' || char === '\t' || char === '\r'
}

function withoutLast(text: string, char: string): string {
  return text.endsWith(char) ? text.slice(0, -1) : text
}

/** Returns the length of the longest end of `text` that is a proper prefix of `tag`. */
function overlap(text: string, tag: string): number {
  for (let length = Math.min(text.length, tag.length - 1); length > 0; length--) {
    if (text.endsWith(tag.slice(0, length))) return length
  }
  return 0
}
