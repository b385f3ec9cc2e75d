import { JsonBytes, toJsonBytes } from '../lib/json/json-bytes.ts'
import { formatSse } from '../lib/net/sse.ts'
import { RolloutError } from '../model/failure.ts'
import { chooseCoding, compress } from './compress.ts'
import { JsonStream, readJson, StoredJson } from './json-stream.ts'
import type { AnswerInput, Route } from './route.ts'

/** One event; `id` is what a reader comes back with. Absent for those that nobody needs to hear again. */
export interface EventReply<Data> {
  id?: string
  data: Data
}

export interface BytesReply {
  stream: ReadableStream<Uint8Array>
  /** Absent when it is not known beforehand. */
  bytes?: number
  mediaType?: string
}

/** What a handler gives back. JSON that lies in a file may be handed on as its bytes, however many. */
export type Reply<R extends Route> = R['answer'] extends { kind: infer Kind }
  ? {
      json: AnswerInput<R> | JsonBytes | JsonStream
      ndjson: AsyncIterable<AnswerInput<R> | JsonBytes | JsonStream>
      sse: AsyncIterable<EventReply<AnswerInput<R>>>
      bytes: BytesReply
    }[Kind & ('json' | 'ndjson' | 'sse' | 'bytes')]
  : never

export interface ReplyOptions {
  checkAnswers: boolean
  /** A stream that had begun ended by an error: the reader sees that it was cut. */
  onCut: (error: unknown) => void
  /** The reader went away. */
  onCancel: () => void
  /** Ends the connection without a proper end. Absent where there is none, as in tests. */
  cut: (() => void) | undefined
}

export async function renderReply(
  route: Route,
  reply: Reply<Route>,
  request: Request,
  options: ReplyOptions,
): Promise<Response> {
  const { answer } = route
  const check = async (value: unknown): Promise<unknown> => {
    if (!options.checkAnswers || answer.kind === 'bytes') return value
    if (value instanceof JsonStream) {
      const { value: read, again } = await readJson(value)
      answer.schema.parse(read)
      return again
    }
    answer.schema.parse(value instanceof JsonBytes ? value.parse() : value)
    return value
  }
  switch (answer.kind) {
    case 'json': {
      const headers = { 'content-type': 'application/json' }
      const value = await check(reply)
      if (value instanceof StoredJson && chooseCoding(request.headers.get('accept-encoding') ?? '') === 'zstd') {
        const stored = { 'content-encoding': 'zstd', 'content-length': String(value.bytes), vary: 'accept-encoding' }
        return new Response(toStream(value.compressed, options), { headers: { ...headers, ...stored } })
      }
      if (value instanceof JsonStream) return compress(toStream(value.chunks, options), request, headers)
      const pieces = toPieces(value)
      const bytes = pieces.reduce((sum, piece) => sum + piece.length, 0)
      if (bytes >= LEAST_BYTES_TO_COMPRESS) return compress(ReadableStream.from(pieces), request, headers)
      return new Response(Buffer.concat(pieces), { headers })
    }
    case 'ndjson': {
      const lines = toLines(reply as AsyncIterable<unknown>, check)
      return compress(toStream(lines, options), request, { 'content-type': 'application/x-ndjson' })
    }
    case 'sse': {
      const frames = toFrames(reply as AsyncIterable<EventReply<unknown>>, check)
      const headers = { 'content-type': 'text/event-stream', 'cache-control': 'no-cache', 'x-accel-buffering': 'no' }
      return new Response(toStream(frames, options), { headers })
    }
    case 'bytes': {
      const { stream, bytes, mediaType = 'application/octet-stream' } = reply as BytesReply
      // What a sandbox wrote must not run as a page of this server, whatever it says it is.
      const headers = new Headers({ 'content-type': mediaType, 'x-content-type-options': 'nosniff' })
      headers.set('content-disposition', 'attachment')
      headers.set('content-security-policy', 'sandbox')
      if (bytes !== undefined) headers.set('content-length', String(bytes))
      return new Response(toStream(stream, options), { headers })
    }
  }
}

/** Below this a compressed answer is hardly a shorter packet. */
const LEAST_BYTES_TO_COMPRESS = 8192
const NEWLINE = Buffer.from('\n')
const LF = 10
const CR = 13
const SPACE = 32

function toPieces(value: unknown): Uint8Array[] {
  return [...toJsonBytes(value).pieces]
}

async function* toLines(
  values: AsyncIterable<unknown>,
  check: (value: unknown) => Promise<unknown>,
): AsyncGenerator<Uint8Array> {
  for await (const value of values) {
    const checked = await check(value)
    if (checked instanceof JsonStream) {
      for await (const chunk of checked.chunks) yield toOneLine(chunk)
      yield NEWLINE
    } else {
      yield Buffer.concat([...toPieces(checked).map(toOneLine), NEWLINE])
    }
  }
}

/** Between the tokens of JSON a line may end, within them it cannot: a space does as well. */
function toOneLine(chunk: Uint8Array): Uint8Array {
  if (!chunk.includes(LF) && !chunk.includes(CR)) return chunk
  return chunk.map((byte) => (byte === LF || byte === CR ? SPACE : byte))
}

async function* toFrames(
  events: AsyncIterable<EventReply<unknown>>,
  check: (value: unknown) => Promise<unknown>,
): AsyncGenerator<Uint8Array> {
  for await (const { id, data } of events) {
    const frame = formatSse(JSON.stringify(await check(data)))
    yield Buffer.from(id === undefined ? frame : `id: ${id}\n${frame}`)
  }
}

/** Pulled one by one, so a slow reader holds the handler back. */
function toStream(
  source: AsyncIterable<Uint8Array>,
  { onCut, onCancel, cut }: ReplyOptions,
): ReadableStream<Uint8Array> {
  const chunks = source[Symbol.asyncIterator]()
  let isCancelled = false
  return new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          const next = await chunks.next()
          if (isCancelled) return
          if (next.done) controller.close()
          else controller.enqueue(next.value)
        } catch (error) {
          if (isCancelled) return
          if (!(error instanceof RolloutError)) onCut(error)
          // The HTTP server would print the error, and might send its text after what was sent before.
          if (cut === undefined) controller.error(error)
          else cut()
        }
      },
      cancel() {
        isCancelled = true
        onCancel()
        // A handler that waits for something ends when its signal says so, and not sooner; nobody need wait for that.
        void chunks.return?.(undefined).catch(() => {})
      },
    },
    { highWaterMark: 0 },
  )
}
