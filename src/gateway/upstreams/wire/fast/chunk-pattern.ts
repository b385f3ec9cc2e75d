import type {
  ChoiceDelta,
  ChunkForm,
  ChunkParts,
  ChunkRun,
  ToolCallDelta,
  WireFields,
} from '../../../../model/stream-event.ts'
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

/** More tokens make another run; more in one chunk are left to the definition. */
const MOST_TOKENS = 256

/** What the text of a chunk adds to: the answer, its reasoning, or the arguments of a call. */
type Said = 'text' | 'reasoning' | { call: number }

/** What the definition makes of a chunk that adds to one choice and does nothing else; undefined for any other. */
export type ReadTokens = (json: string) => ChoiceDelta | undefined

/**
 * The form that the chunks of one answer have: everything but a text, a list of log probabilities and a list of ids is
 * the same in all of them, and that everything is three quarters of their bytes.
 *
 * Why this is safe: a pattern is the bytes of a chunk around those three. Two chunks made from it show that what the
 * definition reads follows the three and nothing else. A chunk of the same bytes around a text, log probabilities and ids
 * that are each valid in their place is then JSON of the same form, and the definition would read it the same way.
 */
export class ChunkPattern implements ChunkForm {
  readonly #constants: readonly [Constant, Constant, Constant, Constant]
  readonly #around: readonly [string, string, string, string]
  readonly #read: ReadTokens
  readonly #choice: number
  readonly #said: Said
  readonly #logprobs = { values: new Float32Array(MOST_TOKENS), length: 0 }
  readonly #ids = { values: new Int32Array(MOST_TOKENS), length: 0 }
  /** Of the latest chunk. An object for each would be most of what there is to clear away. */
  readonly #place = { textStart: 0, textEnd: 0, logprobsEnd: 0, idsEnd: 0 }

  private constructor(around: Around, sample: { choice: number; said: Said }, read: ReadTokens) {
    const [first, second, third, fourth] = around
    this.#constants = [toConstant(first), toConstant(second), toConstant(third), toConstant(fourth)]
    this.#around = [first.toString(), second.toString(), third.toString(), fourth.toString()]
    this.#read = read
    this.#choice = sample.choice
    this.#said = sample.said
  }

  /** From one whole server-sent event. Undefined unless its form is one we can rely on. */
  static learn(event: Buffer, read: ReadTokens): ChunkPattern | undefined {
    for (const around of splitEvent(event)) {
      const texts = around.map((part) => part.toString()) as [string, string, string, string]
      const [one, other] = SAMPLES.map((sample) => readSample(read(toChunk(texts, toParts(sample))), sample))
      if (one !== undefined && other !== undefined) return new ChunkPattern(around, one, read)
    }
    return undefined
  }

  /** The chunks of this form from `start` on; undefined when there is none. `latin1` is all bytes as characters. */
  match(source: Source, latin1: string, start: number): TokenRun | undefined {
    const logprobs = this.#logprobs
    const ids = this.#ids
    const place = this.#place
    const texts: string[] = []
    let json = ''
    let end = start
    // What a chunk of another form left behind its beginning does not count.
    let logprobCount = (logprobs.length = 0)
    let idCount = (ids.length = 0)
    for (let next = this.#scan(source, end); next !== -1; next = this.#scan(source, end)) {
      const { textStart, textEnd } = place
      const isItself = isPlain(source, textStart, textEnd)
      const text = isItself ? latin1.slice(textStart, textEnd) : source.bytes.toString('utf8', textStart, textEnd)
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
      text: this.#said === 'text' ? text : undefined,
      reasoning: this.#said === 'reasoning' ? text : undefined,
      toolCalls: typeof this.#said === 'object' ? [{ index: this.#said.call, arguments: text }] : undefined,
      ids: ids.values.slice(0, idCount),
      logprobs: logprobs.values.slice(0, logprobCount),
      texts,
      source,
      start,
      end,
    })
  }

  /**
   * Where the chunk at `at` ends; -1 when it has another form. Its numbers are put behind those that are there, some of
   * them also when it turns out to be none; where its parts stand is left in `#place`.
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
    const place = this.#place
    place.textStart = textStart
    place.textEnd = textEnd
    place.logprobsEnd = logprobsEnd
    place.idsEnd = idsEnd
    return idsEnd + fourth.length
  }

  /** Of a run that was matched. */
  readParts(source: Source, { texts, start }: { texts: readonly string[]; start: number }): ChunkParts[] {
    const { bytes } = source
    const [, second, third] = this.#constants
    let at = start
    return texts.map((text) => {
      this.#logprobs.length = 0
      this.#ids.length = 0
      at = this.#scan(source, at)
      const { textEnd, logprobsEnd, idsEnd } = this.#place
      return {
        text,
        logprobs: bytes.toString('utf8', textEnd + second.length, logprobsEnd),
        ids: bytes.toString('latin1', logprobsEnd + third.length, idsEnd),
      }
    })
  }

  withParts(parts: ChunkParts): ChoiceDelta {
    const delta = this.#read(toChunk(this.#around, parts))
    if (delta === undefined) throw new TypeError('a pattern that gives no delta')
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
  /** Where the chunks stand. */
  source: Source
  start: number
  end: number
}

/** Some tokens of one choice, in one chunk or several. What else these hold is read from the bytes when somebody asks. */
export class TokenRun implements ChoiceDelta, ChunkRun {
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
  /** Where its last event ends. */
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

  /** As one chunk. */
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

/** What stands before, between and behind the text, the log probabilities and the ids. */
type Around = readonly [Buffer, Buffer, Buffer, Buffer]

/** For each place where the text may be. */
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

/** What the sample was read as; undefined when anything else was read too. */
function readSample(delta: ChoiceDelta | undefined, sample: Sample): { choice: number; said: Said } | undefined {
  if (delta === undefined) return undefined
  const { type: _type, choice, wire: _wire, ids, logprobs, ...spoken } = delta
  if (ids?.length !== 1 || ids[0] !== sample.id || logprobs?.length !== 1 || logprobs[0] !== sample.logprob) {
    return undefined
  }
  const { text, reasoning, toolCalls, ...others } = spoken
  if (Object.keys(spoken).length !== 1 || Object.keys(others).length !== 0) return undefined
  if (text === sample.text) return { choice, said: 'text' }
  if (reasoning === sample.text) return { choice, said: 'reasoning' }
  const [call, ...more] = toolCalls ?? []
  if (call === undefined || more.length > 0) return undefined
  const { index, arguments: args, ...named } = call
  return args === sample.text && Object.keys(named).length === 0 ? { choice, said: { call: index } } : undefined
}
