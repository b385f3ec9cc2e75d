import type { Failure } from '../../model/failure.ts'
import type { ContentPart, Message } from '../../model/message.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import type { WireEvent } from '../wire-event.ts'

/** The operation of a route. Only `generate` calls become part of a trajectory. */
export type RouteKind = 'generate' | 'count-tokens' | 'list-models' | 'get-model'

export interface Route {
  kind: RouteKind
  method: 'GET' | 'POST'
  /** Path below the session's base URL; `*` stands for one or more characters that are not a slash. */
  path: string
  /** A header that the request must have; distinguishes APIs that share a path. */
  header?: string
}

/** A request without its body. */
export interface RequestContext {
  route: Route
  /** The decoded text that each `*` of the route matched. */
  wildcards: readonly string[]
  query: URLSearchParams
  headers: Readonly<Record<string, string | string[] | undefined>>
  /**
   * Returns the conversation up to and including an answer of this session, by the response id that the harness received.
   * Undefined when the session has no such answer.
   */
  recall(responseId: string): readonly Message[] | undefined
  sealer: TextSealer
  /**
   * Maps parts of earlier request bodies to what this dialect parsed from them. A body that repeats parts of an earlier one
   * shares their objects. Neither keys nor values may be changed. Absent: every request is parsed completely.
   */
  parsedParts?: WeakMap<object, unknown>
}

/**
 * Encrypts text that a harness returns without reading it: signatures, encrypted reasoning. Only the same session can open
 * it. The same text gives the same seal, so that histories stay equal byte for byte.
 */
export interface TextSealer {
  /** Letters, digits, `-` and `_`. */
  seal(text: string): string
  /** Returns undefined for text that this session did not seal. */
  open(sealed: string): string | undefined
}

/** A JSON request body: its text, which is relayed byte for byte, and its value. */
export interface JsonBody {
  text: string
  value: unknown
}

/** A whole answer: as captured, and as events, whose wire fields a dialect of the same wire relays. */
export interface Answer {
  response: TurnResponse
  events: readonly WireEvent[]
}

/**
 * Renders the events of one answer as a response stream. Pure apart from its own state: the same events give the same
 * text, independent of how the events were batched.
 */
export interface StreamRenderer {
  /** Returns an empty string for an event that this API does not show. */
  render(event: WireEvent): string
  /** Returns a frame without content that restarts the idle timer of the client. May be called at any time. */
  keepAlive(): string
}

export interface RenderedError {
  status: number
  headers: Readonly<Record<string, string>>
  body: unknown
}

/** One wire API: its JSON and its events. Has no access to engines, keys or sessions. */
export interface Dialect {
  id: string
  routes: readonly Route[]
  /** Whether a request that matches no route was meant for this API, so that this dialect renders the error. */
  recognises(path: string, headers: RequestContext['headers']): boolean
  /** For `generate` and `count-tokens`. Throws RolloutError `request.malformed`, which names the field. */
  parseRequest(body: JsonBody, context: RequestContext): TurnRequest
  /** Renders the answer to a request without `stream`. */
  renderResponse(request: TurnRequest, answer: Answer, context: RequestContext): unknown
  createStreamRenderer(request: TurnRequest, context: RequestContext): StreamRenderer
  streamType(request: TurnRequest): string
  /**
   * Returns the last bytes of a stream that failed. Undefined: the gateway breaks the connection, because this client
   * retries only then. `headers`: those of the request.
   */
  renderStreamError(failure: Failure, headers?: RequestContext['headers']): string | undefined
  renderError(failure: Failure): RenderedError
  renderTokenCount(tokens: number): unknown
  renderModels(models: readonly string[], created: number): unknown
  renderModel(model: string, created: number): unknown
}

/** Appends parts to the content of an assistant turn. Joins texts that were sampled as one text; drops empty texts. */
export function appendParts(content: ContentPart[], parts: readonly ContentPart[]): void {
  for (const part of parts) {
    const last = content.at(-1)
    if (part.type === 'text' && last?.type === 'text') last.text += part.text
    else if (part.type !== 'text' || part.text !== '') content.push({ ...part })
  }
}

/** A context without a session, for parsing recorded requests. */
export function bareContext(route: Route): RequestContext {
  return {
    route,
    wildcards: [],
    query: new URLSearchParams(),
    headers: {},
    recall: () => undefined,
    sealer: { seal: (text) => text, open: () => undefined },
  }
}
