import type { ToolCallDelta } from '../../../../model/stream-event.ts'
import type { ChunkForm, ChunkParts, ChunkRun, DeltaEvent, WireFields } from '../../../wire-event.ts'
import {
  isAt,
  isPlain,
  scanIds,
  scanLogprobs,
  scanString,
  toConstant,
  toSource,
  type Constant,
  type Source,
} from './scan-bytes.ts'

/** A run has at most this many tokens. A chunk with more is left to the reference reader. */
const MOST_TOKENS = 256

/** What the text of a chunk extends: the answer, its reasoning, or the arguments of a tool call. */
type TextTarget = 'text' | 'reasoning' | { call: number }

/** The reference reader for a chunk that only adds to one choice. Returns undefined for any other chunk. */
export type ReadTokens = (json: string) => DeltaEvent | undefined

/**
 * The form of the chunks of one answer: all bytes except a text, a list of log probabilities and a list of ids, which are
 * the only parts in which the chunks differ.
 *
 * Why this is safe: the pattern is the bytes of a chunk around these three parts. `learn` fills the pattern with two
 * different samples and checks that the reference reader's result follows the three parts and nothing else. A chunk with
 * the same bytes around three valid parts is then JSON of the same form, and the reference reader gives the same result.
 */
export class ChunkPattern implements ChunkForm {
  readonly #constants: readonly [Constant, Constant, Constant, Constant]
  readonly #around: readonly [string, string, string, string]
  readonly #read: ReadTokens
  readonly #choice: number
  readonly #target: TextTarget
  readonly #logprobs = { values: new Float32Array(MOST_TOKENS), length: 0 }
  readonly #ids = { values: new Int32Array(MOST_TOKENS), length: 0 }
  /** Positions in the latest chunk. One object for all chunks, because one for each would be most of the garbage. */
  readonly #positions = { textStart: 0, textEnd: 0, logprobsEnd: 0, idsEnd: 0 }

  private constructor(around: Around, sample: { choice: number; target: TextTarget }, read: ReadTokens) {
    const [first, second, third, fourth] = around
    this.#constants = [toConstant(first), toConstant(second), toConstant(third), toConstant(fourth)]
    this.#around = [first.toString(), second.toString(), third.toString(), fourth.toString()]
    this.#read = read
    this.#choice = sample.choice
    this.#target = sample.target
  }

  /** Derives a pattern from one complete server-sent event. Undefined when the samples do not confirm it. */
  static learn(event: Buffer, read: ReadTokens): ChunkPattern | undefined {
    for (const around of splitEvent(event)) {
      const texts = around.map((part) => part.toString()) as [string, string, string, string]
      const [one, other] = SAMPLES.map((sample) => readSample(read(toChunk(texts, toParts(sample))), sample))
      if (one !== undefined && other !== undefined) return new ChunkPattern(around, one, read)
    }
    return undefined
  }

  /**
   * Returns the consecutive chunks of this form that begin at `start`; undefined when there is none. `latin1` is the source
   * with each byte as one character.
   */
  match(source: Source, latin1: string, start: number): TokenRun | undefined {
    const logprobs = this.#logprobs
    const ids = this.#ids
    const positions = this.#positions
    const texts: string[] = []
    let json = ''
    let end = start
    // The last `#scan` fails and may leave numbers of an incomplete chunk, so the counts of the matched chunks are kept.
    let logprobCount = (logprobs.length = 0)
    let idCount = (ids.length = 0)
    for (let next = this.#scan(source, end); next !== -1; next = this.#scan(source, end)) {
      const { textStart, textEnd } = positions
      const text = isPlain(source, textStart, textEnd)
        ? latin1.slice(textStart, textEnd)
        : source.bytes.toString('utf8', textStart, textEnd)
      texts.push(text)
      json += text
      logprobCount = logprobs.length
      idCount = ids.length
      end = next
    }
    if (texts.length === 0) return undefined
    const text = json.includes('\\') ? (JSON.parse(`"${json}"`) as string) : json
    return new TokenRun(this, {
      choice: this.#choice,
      text: this.#target === 'text' ? text : undefined,
      reasoning: this.#target === 'reasoning' ? text : undefined,
      toolCalls: typeof this.#target === 'object' ? [{ index: this.#target.call, arguments: text }] : undefined,
      ids: ids.values.slice(0, idCount),
      logprobs: logprobs.values.slice(0, logprobCount),
      texts,
      source,
      start,
      end,
    })
  }

  /**
   * Returns the end of the chunk at `at`; -1 when the chunk has another form. Appends its numbers to `#logprobs` and
   * `#ids`, on failure possibly some of them, and writes the positions of its parts to `#positions`.
   */
  #scan(source: Source, at: number): number {
    const [first, second, third, fourth] = this.#constants
    if (!isAt(source, at, first)) return -1
    const textStart = at + first.length
    const textEnd = scanString(source, textStart)
    if (textEnd === -1 || !isAt(source, textEnd, second)) return -1
    const logprobsEnd = scanLogprobs(source, textEnd + second.length, this.#logprobs)
    if (logprobsEnd === -1 || !isAt(source, logprobsEnd, third)) return -1
    const idsEnd = scanIds(source, logprobsEnd + third.length, this.#ids)
    if (idsEnd === -1 || !isAt(source, idsEnd, fourth)) return -1
    const positions = this.#positions
    positions.textStart = textStart
    positions.textEnd = textEnd
    positions.logprobsEnd = logprobsEnd
    positions.idsEnd = idsEnd
    return idsEnd + fourth.length
  }

  /** Returns the parts of each chunk of a run that `match` returned. */
  readParts(source: Source, { texts, start }: { texts: readonly string[]; start: number }): ChunkParts[] {
    const { bytes } = source
    const [, second, third] = this.#constants
    let at = start
    return texts.map((text) => {
      this.#logprobs.length = 0
      this.#ids.length = 0
      at = this.#scan(source, at)
      const { textEnd, logprobsEnd, idsEnd } = this.#positions
      return {
        text,
        logprobs: bytes.toString('utf8', textEnd + second.length, logprobsEnd),
        ids: bytes.toString('latin1', logprobsEnd + third.length, idsEnd),
      }
    })
  }

  withParts(parts: ChunkParts): DeltaEvent {
    const delta = this.#read(toChunk(this.#around, parts))
    if (delta === undefined) throw new TypeError('the pattern of a chunk was not readable with other parts')
    return delta
  }
}

interface TokenFields {
  choice: number
  text: string | undefined
  reasoning: string | undefined
  toolCalls: readonly ToolCallDelta[] | undefined
  ids: Int32Array
  logprobs: Float32Array
  texts: readonly string[]
  /** The bytes of the chunks, from `start` to `end`. */
  source: Source
  start: number
  end: number
}

/** Tokens of one choice from one or more chunks. The other members are read from the bytes on demand. */
export class TokenRun implements DeltaEvent, ChunkRun {
  readonly type = 'choice-delta'
  readonly choice: number
  readonly text: string | undefined
  readonly reasoning: string | undefined
  readonly toolCalls: readonly ToolCallDelta[] | undefined
  readonly ids: Int32Array
  readonly logprobs: Float32Array
  readonly form: ChunkPattern
  readonly texts: readonly string[]
  readonly #source: Source
  readonly #start: number
  readonly end: number

  constructor(form: ChunkPattern, fields: TokenFields) {
    this.form = form
    this.choice = fields.choice
    this.text = fields.text
    this.reasoning = fields.reasoning
    this.toolCalls = fields.toolCalls
    this.ids = fields.ids
    this.logprobs = fields.logprobs
    this.texts = fields.texts
    this.#source = fields.source
    this.#start = fields.start
    this.end = fields.end
  }

  get run(): ChunkRun {
    return this
  }

  readParts(): ChunkParts[] {
    return this.form.readParts(this.#source, { texts: this.texts, start: this.#start })
  }

  /** The run as one chunk. */
  get wire(): WireFields | undefined {
    const parts = this.readParts()
    const join = (name: 'logprobs' | 'ids'): string =>
      parts
        .map((part) => part[name])
        .filter((list) => list !== '')
        .join(',')
    return this.form.withParts({ text: this.texts.join(''), logprobs: join('logprobs'), ids: join('ids') }).wire
  }
}

// --- learning ---------------------------------------------------------------------------------------------------------

const DATA = 'data: '
const END = '\n\n'
const TEXT = /"(?:content|reasoning|reasoning_content|arguments)":"/g
const LOGPROBS = '"logprobs":{"content":['
const IDS = '"token_ids":['

/** The bytes before, between and behind the text, the log probabilities and the ids. */
type Around = readonly [Buffer, Buffer, Buffer, Buffer]

/** Yields a split for each member that may be the text. */
function* splitEvent(event: Buffer): Generator<Around> {
  const latin1 = event.toString('latin1')
  if (!latin1.startsWith(DATA) || latin1.indexOf('\n') !== latin1.length - END.length) return
  const source = toSource(event)
  for (const text of latin1.matchAll(TEXT)) {
    const textStart = text.index + text[0].length
    const textEnd = scanString(source, textStart)
    const logprobs = latin1.indexOf(LOGPROBS, textEnd)
    if (textEnd === -1 || logprobs === -1) return
    const logprobsStart = logprobs + LOGPROBS.length
    const logprobsEnd = scanLogprobs(source, logprobsStart, { values: new Float32Array(MOST_TOKENS), length: 0 })
    const ids = latin1.indexOf(IDS, logprobsEnd)
    if (logprobsEnd === -1 || ids === -1) return
    const idsStart = ids + IDS.length
    const idsEnd = scanIds(source, idsStart, { values: new Int32Array(MOST_TOKENS), length: 0 })
    if (idsEnd === -1) return
    const copy = (start: number, end: number): Buffer => Buffer.from(event.subarray(start, end))
    yield [copy(0, textStart), copy(textEnd, logprobsStart), copy(logprobsEnd, idsStart), copy(idsEnd, event.length)]
  }
}

interface Sample {
  text: string
  logprob: number
  id: number
}

const SAMPLES: readonly [Sample, Sample] = [
  { text: 'one', logprob: -1, id: 1 },
  { text: 'two', logprob: -2, id: 2 },
]

function toParts({ text, logprob, id }: Sample): ChunkParts {
  return { text, logprobs: `{"token":"","logprob":${logprob},"bytes":[],"top_logprobs":[]}`, ids: String(id) }
}

function toChunk(around: readonly [string, string, string, string], { text, logprobs, ids }: ChunkParts): string {
  const [first, second, third, fourth] = around
  return `${first.slice(DATA.length)}${text}${second}${logprobs}${third}${ids}${fourth.slice(0, -END.length)}`
}

/** Returns what the sample extends; undefined when the reference reader found anything besides the sample. */
function readSample(delta: DeltaEvent | undefined, sample: Sample): { choice: number; target: TextTarget } | undefined {
  if (delta === undefined) return undefined
  const { type: _type, choice, wire: _wire, ids, logprobs, ...rest } = delta
  if (ids?.length !== 1 || ids[0] !== sample.id || logprobs?.length !== 1 || logprobs[0] !== sample.logprob) {
    return undefined
  }
  const { text, reasoning, toolCalls, ...others } = rest
  if (Object.keys(rest).length !== 1 || Object.keys(others).length !== 0) return undefined
  if (text === sample.text) return { choice, target: 'text' }
  if (reasoning === sample.text) return { choice, target: 'reasoning' }
  const [call, ...more] = toolCalls ?? []
  if (call === undefined || more.length > 0) return undefined
  const { index, arguments: args, ...named } = call
  return args === sample.text && Object.keys(named).length === 0 ? { choice, target: { call: index } } : undefined
}
