import type { AssistantMessage, Message, Tool, ToolCall } from '../../src/model/message.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import type { Choice, Turn, TurnRequest } from '../../src/model/turn.ts'
import { buildGraph } from '../../src/trajectory/graph/build-graph.ts'
import type { CallGraph, CallNode, RequestReader } from '../../src/trajectory/graph/call-graph.ts'
import { chatMessageOf } from '../../src/trajectory/sample-messages.ts'

/** One call of a hand-written session. A toy template renders the tokens, one per character, unless they are given. */
export interface ToyCall {
  id: string
  messages: Message[]
  answer: AssistantMessage
  tools?: string[]
  /** Further choices. */
  others?: AssistantMessage[]
  /** Text of the prompt; absent: `render` of the messages and tools. */
  prompt?: string
  /** Sampled text; absent: the answer as rendered, with its end. */
  sampled?: string
  choice?: Partial<Choice>
  turn?: Partial<Turn>
  request?: Partial<TurnRequest>
}

/** Returns a session of the calls in order, one second each, without other data. */
export function toySession(calls: readonly ToyCall[]): SessionRecord {
  const turns = calls.map(toTurn)
  return { id: 'ses_1', createdAt: 0, origin: {}, turns, complete: true, incompleteReasons: [] }
}

/** Parses the requests of toySession(). */
export const toyReader: RequestReader = {
  readRequest: (turn) => JSON.parse(turn.request) as TurnRequest,
  readPrompt: (turn) => ({ messages: (JSON.parse(turn.request) as TurnRequest).messages, tools: null }),
}

/** Parses prompts in the Chat Completions format, like the reader of a node. */
export const chatReader: RequestReader = {
  ...toyReader,
  readPrompt: (turn) => ({
    messages: toyReader
      .readRequest(turn)!
      .messages.map((each) => (each.role === 'assistant' ? chatMessageOf(each) : each)),
    tools: null,
  }),
}

export const blindReader: RequestReader = {
  readRequest: () => undefined,
  readPrompt: () => ({ messages: [], tools: null }),
}

export function toyGraph(calls: readonly ToyCall[], reader = toyReader): CallGraph {
  return buildGraph(toySession(calls), reader)
}

/** Returns the node of a call's first choice. */
export function nodeOf(graph: CallGraph, id: string): CallNode {
  const node = graph.nodes.find(({ turn }) => turn.id === id)
  if (node === undefined) throw new Error(`There is no ${id}.`)
  return node
}

/** Returns verdict, reason and parent of a call in one line. */
export function edgeLine(graph: CallGraph, id: string): string {
  const { edge } = nodeOf(graph, id)
  switch (edge.verdict) {
    case 'exact':
      return `exact ${edge.parent.turn.id}`
    case 'forked':
      return `${edge.reason} ${edge.from.turn.id}: ${edge.detail}`
    case 'root':
      return edge.reason
  }
}

export function labelsOf(graph: CallGraph): Record<string, string> {
  return Object.fromEntries(
    graph.nodes.map(({ turn, choice, label, response }) => [
      response.choices.length === 1 ? turn.id : `${turn.id}#${choice.index}`,
      label,
    ]),
  )
}

// --- messages ---------------------------------------------------------------------------------------------------------

export function system(text: string): Message {
  return { role: 'system', content: [{ type: 'text', text }] }
}

export function user(...texts: string[]): Message {
  return { role: 'user', content: texts.map((text) => ({ type: 'text', text })) }
}

export function result(text: string): Message {
  return { role: 'tool', toolCallId: 'call', content: [{ type: 'text', text }] }
}

export function says(text: string, more: { reasoning?: string; calls?: ToolCall[] } = {}): AssistantMessage {
  return {
    role: 'assistant',
    content: text === '' ? [] : [{ type: 'text', text }],
    toolCalls: more.calls ?? [],
    ...(more.reasoning === undefined ? {} : { reasoning: more.reasoning }),
  }
}

export function call(name: string, args: unknown): ToolCall {
  return { id: `id-${name}`, name, arguments: typeof args === 'string' ? args : JSON.stringify(args) }
}

// --- tokens -----------------------------------------------------------------------------------------------------------

/** Start of an answer in every prompt. */
const OPENING = '<assistant>'

/** Renders tools, then messages, with reasoning if given. */
export function render(messages: readonly Message[], tools: readonly string[]): string {
  return `{${tools.join(',')}}${messages.map(renderMessage).join('')}${OPENING}`
}

function renderMessage(message: Message): string {
  return message.role === 'assistant'
    ? `${OPENING}${renderAnswer(message)}`
    : `<${message.role}>${message.content.map((part) => (part.type === 'text' ? part.text : '')).join('')}$`
}

function renderAnswer({ reasoning, content, toolCalls }: AssistantMessage): string {
  const text = content.map((part) => (part.type === 'text' ? part.text : '')).join('')
  const calls = toolCalls.map(({ name, arguments: args }) => `[${name} ${args}]`).join('')
  return `${reasoning === undefined ? '' : `(${reasoning})`}${text}${calls}$`
}

function toIds(text: string): Int32Array {
  return Int32Array.from(text, (char) => char.codePointAt(0) as number)
}

function toTurn(toy: ToyCall, index: number): Turn {
  const tools: Tool[] = (toy.tools ?? []).map((name) => ({ name }))
  const request: TurnRequest = {
    dialect: 'toy',
    model: toy.turn?.model ?? 'm',
    messages: toy.messages,
    tools,
    sampling: { n: 1 + (toy.others?.length ?? 0) },
    stream: false,
    streamUsage: false,
    logprobs: false,
    wire: { api: 'toy', text: '', body: {} },
    ...toy.request,
  }
  const answers = [toy.answer, ...(toy.others ?? [])]
  return {
    id: toy.id,
    sessionId: 'ses_1',
    index,
    dialect: 'toy',
    startedAt: index * 1000,
    endedAt: index * 1000 + 900,
    model: 'm',
    stream: false,
    request: JSON.stringify(request),
    headers: {},
    forced: {},
    delivery: 'delivered',
    response: {
      id: `r-${toy.id}`,
      model: 'm',
      created: 0,
      promptIds: toIds(toy.prompt ?? render(toy.messages, toy.tools ?? [])),
      choices: answers.map((message, at) => toChoice(message, at, at === 0 ? toy : {})),
      grade: 'exact',
      gradeReasons: [],
    },
    ...toy.turn,
  }
}

function toChoice(message: AssistantMessage, index: number, { sampled, choice }: Partial<ToyCall>): Choice {
  const ids = toIds(sampled ?? renderAnswer(message))
  const finishReason = message.toolCalls.length > 0 ? 'tool-calls' : 'stop'
  return { index, message, finishReason, ids, logprobs: new Float32Array(ids.length), ...choice }
}
