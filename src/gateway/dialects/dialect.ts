import type { Failure } from '../../model/failure.ts'
import type { Message } from '../../model/message.ts'
import type { StreamEvent } from '../../model/stream-event.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'

/** What a request to a route wants. Only `generate` ever reaches a trajectory. */
export type RouteKind = 'generate' | 'count-tokens' | 'list-models' | 'get-model'

export interface Route {
  kind: RouteKind
  method: 'GET' | 'POST'
  /** Path below the session's base URL; `*` stands for one or more characters that are not a slash. */
  path: string
  /** Only with this header; tells APIs apart that share a path. */
  header?: string
}

/** What a dialect may know of a request besides its body. */
export interface RequestContext {
  route: Route
  /** What each `*` of the route stood for, decoded. */
  wildcards: readonly string[]
  query: URLSearchParams
  headers: Readonly<Record<string, string | string[] | undefined>>
  /**
   * The conversation up to and including an answer of this session, by the id the harness was given for it; undefined
   * when the session gave no such answer.
   */
  recall(responseId: string): readonly Message[] | undefined
  vault: Vault
  /**
   * What a dialect has made of parts of earlier requests, by those parts: a body that repeats an earlier one has the very
   * same objects in it. Neither they nor what is kept here may be changed. Absent: every request stands for itself.
   */
  known?: WeakMap<object, unknown>
}

/**
 * Carries text through a harness that is meant to hand it back unread: signatures, encrypted reasoning. Only this session
 * can open what it sealed. The same text gives the same seal, so that histories stay equal byte for byte.
 */
export interface Vault {
  /** Letters, digits, `-` and `_`. */
  seal(text: string): string
  /** Undefined for anything that was not sealed here. */
  open(sealed: string): string | undefined
}

/** A request body that was read and is JSON: its text, so that no byte is lost, and its value. */
export interface JsonBody {
  text: string
  value: unknown
}

/** A whole answer: as captured, and as it came, for a dialect of the same wire. */
export interface Answer {
  response: TurnResponse
  events: readonly StreamEvent[]
}

/**
 * Turns the events of one answer into the bytes of one response. Pure but for its own memory: the same events give the
 * same bytes, however they were cut on their way here.
 */
export interface StreamRenderer {
  /** Empty when the harness has nothing to see in this event. */
  render(event: StreamEvent): string
  /** A frame without content that restarts the idle timer of this client. May be called at any time. */
  keepAlive(): string
}

/** A frame that SSE parsers skip. */
export const SSE_COMMENT = ': keep-alive\n\n'

/**
 * Whether comments keep a client of an OpenAI API waiting. OpenAI's SDKs skip comments, and only the connection has a
 * timer, which every byte restarts. Qwen Code uses that SDK too, but its own idle timer counts events only.
 */
export function takesComments(headers: RequestContext['headers']): boolean {
  return headers['x-stainless-lang'] !== undefined && !String(headers['user-agent']).startsWith('QwenCode/')
}

export interface RenderedError {
  status: number
  headers: Readonly<Record<string, string>>
  body: unknown
}

/** One wire API. Knows its JSON and its events; knows no engine, key or session. */
export interface Dialect {
  id: string
  routes: readonly Route[]
  /** Whether a request that fits no route was meant for this API, so that it is refused in its own words. */
  recognises(path: string, headers: RequestContext['headers']): boolean
  /** For `generate` and `count-tokens`. Throws RolloutError `request.malformed` that names the field. */
  parseRequest(body: JsonBody, context: RequestContext): TurnRequest
  /** The whole answer to a request that did not ask for a stream. */
  renderResponse(request: TurnRequest, answer: Answer, context: RequestContext): unknown
  createStreamRenderer(request: TurnRequest, context: RequestContext): StreamRenderer
  /** Content type of the stream this request asked for. */
  streamType(request: TurnRequest): string
  /**
   * The last bytes of a stream that failed half way. Undefined: break the connection, because that is what makes the
   * clients of this API try again.
   */
  renderStreamError(failure: Failure): string | undefined
  renderError(failure: Failure): RenderedError
  renderTokenCount(tokens: number): unknown
  renderModels(models: readonly string[], created: number): unknown
  renderModel(model: string, created: number): unknown
}

/** A context for reading a recorded request again: no session stands behind it. */
export function bareContext(route: Route): RequestContext {
  return {
    route,
    wildcards: [],
    query: new URLSearchParams(),
    headers: {},
    recall: () => undefined,
    vault: { seal: (text) => text, open: () => undefined },
  }
}
