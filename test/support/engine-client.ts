import { SseParser } from '../../src/lib/net/sse.ts'

/** A plain HTTP client of an engine, without a library. */

export interface LogprobEntry {
  token: string
  logprob: number
  bytes: number[] | null
  top_logprobs: { token: string; logprob: number; bytes: number[] | null }[]
}

export interface WireToolCall {
  index: number
  id?: string
  type?: string
  function: { name?: string; arguments?: string }
}

export interface WireChoice {
  index: number
  delta?: { role?: string; content?: string | null; reasoning?: string; tool_calls?: WireToolCall[] }
  message?: { role: string; content: string | null; reasoning: string | null; tool_calls?: WireToolCall[] }
  text?: string
  logprobs: { content: LogprobEntry[] } | null
  finish_reason: string | null
  stop_reason?: string | number | null
  token_ids?: number[] | null
  prompt_token_ids?: number[] | null
}

export interface WireAnswer {
  id: string
  choices: WireChoice[]
  usage?: { prompt_tokens: number; completion_tokens: number; total_tokens: number } | null
  prompt_token_ids?: number[] | null
  error?: { message: string; type: string; param: string | null; code: number }
}

export interface Streamed {
  status: number
  chunks: WireAnswer[]
  /** Whether `[DONE]` was the last event. */
  isDone: boolean
}

export function post(url: string, body: unknown, init: RequestInit = {}): Promise<Response> {
  return fetch(url, {
    method: 'POST',
    ...init,
    headers: { 'content-type': 'application/json', ...(init.headers as Record<string, string>) },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  })
}

export async function postJson(url: string, body: unknown): Promise<{ status: number; body: WireAnswer }> {
  const response = await post(url, body)
  return { status: response.status, body: (await response.json()) as WireAnswer }
}

export async function postStream(url: string, body: Readonly<Record<string, unknown>>): Promise<Streamed> {
  const response = await post(url, { ...body, stream: true })
  const parser = new SseParser()
  const data: string[] = []
  for await (const bytes of response.body ?? []) data.push(...parser.push(bytes).map((message) => message.data))
  const isDone = data.at(-1) === '[DONE]'
  const chunks = data.filter((text) => text !== '[DONE]').map((text) => JSON.parse(text) as WireAnswer)
  return { status: response.status, chunks, isDone }
}

/** Joins the chunks of one choice of a stream. */
export interface Joined {
  content: string
  reasoning: string
  text: string
  toolCalls: { id: string; name: string; arguments: string }[]
  ids: number[]
  logprobs: LogprobEntry[]
  finishReason: string | null
  stopReason: string | number | null
}

export function joinChoice(chunks: readonly WireAnswer[], index = 0): Joined {
  const joined: Joined = {
    content: '',
    reasoning: '',
    text: '',
    toolCalls: [],
    ids: [],
    logprobs: [],
    finishReason: null,
    stopReason: null,
  }
  for (const choice of chunks.flatMap(({ choices }) => choices).filter((one) => one.index === index)) {
    joined.content += choice.delta?.content ?? ''
    joined.reasoning += choice.delta?.reasoning ?? ''
    joined.text += choice.text ?? ''
    joined.ids.push(...(choice.token_ids ?? []))
    joined.logprobs.push(...(choice.logprobs?.content ?? []))
    for (const call of choice.delta?.tool_calls ?? []) {
      const known = (joined.toolCalls[call.index] ??= { id: '', name: '', arguments: '' })
      known.id += call.id ?? ''
      known.name += call.function.name ?? ''
      known.arguments += call.function.arguments ?? ''
    }
    if (choice.finish_reason !== null) {
      joined.finishReason = choice.finish_reason
      joined.stopReason = choice.stop_reason ?? null
    }
  }
  return joined
}
