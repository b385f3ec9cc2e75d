import type { Failure } from '../../model/failure.ts'
import type { StreamEvent } from '../../model/stream-event.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { Dialect, RequestContext, StreamRenderer } from '../dialects/dialect.ts'
import type { Listener, TurnEnding } from '../sessions/live-turn.ts'

/** The harness's side of a call. Writing after the harness has closed the call is no error. */
export interface Caller {
  /** Aborted when the harness closes the call before it has the whole answer. */
  readonly signal: AbortSignal
  startStream(contentType: string): void
  /** Returns a promise while the send buffer is full. */
  write(text: string): void | Promise<void>
  /** Resolves with whether all bytes were passed to the network. */
  end(text?: string): Promise<boolean>
  sendJson(status: number, body: unknown, headers?: Readonly<Record<string, string>>): Promise<boolean>
  cut(): void
}

export interface AnswerCall {
  dialect: Dialect
  context: RequestContext
  request: TurnRequest
  caller: Caller
}

/** Renders the events of a turn as the response to one harness request. */
export interface AnswerWriter extends Listener {
  /** Sends the end of the answer, called after the turn is stored. Resolves with whether the harness received it all. */
  finish(ending: TurnEnding): Promise<boolean>
}

export function createAnswerWriter(call: AnswerCall): AnswerWriter {
  return call.request.stream ? new StreamWriter(call) : new WholeWriter(call)
}

class WholeWriter implements AnswerWriter {
  readonly #call: AnswerCall
  readonly #events: StreamEvent[] = []

  constructor(call: AnswerCall) {
    this.#call = call
  }

  deliver(events: readonly StreamEvent[]): void {
    this.#events.push(...events)
  }

  async finish({ response, failure }: TurnEnding): Promise<boolean> {
    const { dialect, context, request, caller } = this.#call
    if (failure !== undefined || response === undefined) return sendError(dialect, caller, failure ?? noAnswer())
    return caller.sendJson(200, dialect.renderResponse(request, { response, events: this.#events }, context))
  }
}

/** How long the engine may be silent before the harness receives response headers. */
const HEADERS_AFTER_MS = 900
/** Harnesses abort a call after 60 to 300 s without data. */
const KEEP_ALIVE_MS = 10_000

/**
 * For a request with `stream`. Frames are sent as their events arrive. Frames from the last finish reason on are held back
 * until the turn is stored: a client may end its call at any of them and query the stored turn at once.
 */
class StreamWriter implements AnswerWriter {
  readonly #call: AnswerCall
  readonly #renderer: StreamRenderer
  #timer: NodeJS.Timeout
  #isStarted = false
  #finishedChoices = 0
  #held = ''

  constructor(call: AnswerCall) {
    this.#call = call
    this.#renderer = call.dialect.createStreamRenderer(call.request, call.context)
    this.#timer = setTimeout(() => this.#keepAlive(), HEADERS_AFTER_MS)
  }

  deliver(events: readonly StreamEvent[]): void | Promise<void> {
    let ready = ''
    for (const event of events) {
      // `finish` renders the failure of the turn, which may be another one than the engine's: the harness may be gone.
      if (event.type === 'answer-error') break
      if (event.type === 'choice-delta' && event.finishReason !== undefined) this.#finishedChoices += 1
      const text = this.#renderer.render(event)
      if (this.#finishedChoices >= this.#call.request.sampling.n) this.#held += text
      else ready += text
    }
    return ready === '' ? undefined : this.#write(ready)
  }

  async finish({ failure }: TurnEnding): Promise<boolean> {
    const { dialect, caller, context } = this.#call
    if (failure === undefined) this.#start()
    clearTimeout(this.#timer)
    if (failure === undefined) return caller.end(this.#held)
    // No headers were sent, so the error can still have its own status.
    if (!this.#isStarted) return sendError(dialect, caller, failure)
    // A stream that is one JSON text must be closed by the renderer that opened it.
    const closing = this.#renderer.render({ type: 'answer-error', failure })
    const lastFrame = closing || dialect.renderStreamError(failure, context.headers)
    if (lastFrame === undefined) caller.cut()
    else await caller.end(lastFrame)
    return false
  }

  #write(text: string): void | Promise<void> {
    this.#start()
    this.#timer.refresh()
    return this.#call.caller.write(text)
  }

  #start(): void {
    if (this.#isStarted) return
    this.#isStarted = true
    clearTimeout(this.#timer)
    this.#timer = setInterval(() => this.#keepAlive(), KEEP_ALIVE_MS)
    this.#call.caller.startStream(this.#call.dialect.streamType(this.#call.request))
  }

  #keepAlive(): void {
    this.#start()
    if (this.#call.caller.signal.aborted) clearTimeout(this.#timer)
    else void this.#call.caller.write(this.#renderer.keepAlive())
  }
}

/** Returns false: an error is no delivered answer. */
async function sendError(dialect: Dialect, caller: Caller, failure: Failure): Promise<boolean> {
  const { status, headers, body } = dialect.renderError(failure)
  await caller.sendJson(status, body, headers)
  return false
}

function noAnswer(): Failure {
  return { code: 'upstream.bad-stream', message: 'The engine returned an empty answer.', status: 502 }
}
