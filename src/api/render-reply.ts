import { JsonBytes, toJsonBytes } from '../lib/json/json-bytes.ts'
import { formatSse } from '../lib/net/sse.ts'
import { RolloutError } from '../model/failure.ts'
import { chooseCoding, compress } from './compress.ts'
import { JsonStream, readJson, StoredJson } from './json-stream.ts'
import type { AnswerInput, Route } from './route.ts'

/** `id`: a client reconnects with it. Absent for events that need no replay. */
export interface EventReply<Data> {
  id?: string
  data: Data
}

export interface BytesReply {
  stream: ReadableStream<Uint8Array>
  /** Absent if unknown. */
  bytes?: number
  mediaType?: string
}

/** Return value of a handler. JSON in a file can be returned as a stream of its bytes. */
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
  /** A response stream failed after it had begun; the client sees a cut connection. */
  onCut: (error: unknown) => void
  /** The client disconnected. */
  onCancel: () => void
  /** Closes the connection without ending the response. Undefined without a connection, as in tests. */
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
      if (bytes >= MIN_BYTES_TO_COMPRESS) return compress(ReadableStream.from(pieces), request, headers)
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
      // Files of a sandbox must not run as a web page of this server.
      const headers = new Headers({ 'content-type': mediaType, 'x-content-type-options': 'nosniff' })
      headers.set('content-disposition', 'attachment')
      headers.set('content-security-policy', 'sandbox')
      if (bytes !== undefined) headers.set('content-length', String(bytes))
      return new Response(toStream(stream, options), { headers })
    }
  }
}

/** Compressing a shorter response hardly saves a packet. */
const MIN_BYTES_TO_COMPRESS = 8192
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

/** Line breaks can only occur between JSON tokens, where a space is equivalent. */
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

/** Pulls chunk by chunk, so that a slow client slows down the handler. */
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
          // Passing the error on would make the HTTP server print it, and possibly append its text to the response.
          if (cut === undefined) controller.error(error)
          else cut()
        }
      },
      cancel() {
        isCancelled = true
        onCancel()
        // A waiting handler ends when its signal is aborted; the cancel need not wait for it.
        void chunks.return?.(undefined).catch(() => {})
      },
    },
    { highWaterMark: 0 },
  )
}
