import { isEqualIds } from '../../lib/collections/common-prefix.ts'
import type { AssistantMessage, Message } from '../../model/message.ts'
import type { TurnRequest } from '../../model/turn.ts'

/** Returns the prompt ids of a request, as the engine's own template and tokenizer make them. */
export type Render = (request: TurnRequest) => Promise<Int32Array>

export type BridgeFailure = 'template-moves' | 'reasoning-stripped'

/**
 * Returns the ids between a sampled answer and the next answer: the template's rendering of the messages in between.
 *
 * The engine renders the conversation twice, with two different words instead of the answer. The common suffix of both
 * renderings does not depend on the answer. Its first end-of-turn id closes the turn of the answer, and the bridge is the
 * rest. The bridge begins after a special token, so its ids do not depend on the text before. This needs no template and
 * no tokenizer here. End-of-turn strings in a message are harmless: they come before the suffix or after that first id.
 */
export async function findBridge(
  request: TurnRequest,
  answerAt: number,
  answer: AssistantMessage,
  endOfTurn: number,
  render: Render,
): Promise<Int32Array | BridgeFailure> {
  const [one, other] = await Promise.all(
    SENTINELS.map((word) => render(withAnswer(request, answerAt, replaceText(answer, word)))),
  )
  const suffix = commonSuffix(one as Int32Array, other as Int32Array)
  const end = suffix.indexOf(endOfTurn)
  // The renderings are equal, or the answer's end is not in the suffix: the template moves or drops messages.
  if (end === -1 || suffix.length === one?.length) return 'template-moves'
  return suffix.slice(end + 1)
}

/** Whether the template drops the reasoning of this turn in later prompts. */
export async function dropsReasoning(
  request: TurnRequest,
  answerAt: number,
  answer: AssistantMessage,
  render: Render,
): Promise<boolean> {
  const [one, other] = await Promise.all(
    SENTINELS.map((word) => render(withAnswer(request, answerAt, { ...answer, reasoning: word }))),
  )
  return one !== undefined && other !== undefined && isEqualIds(one, other)
}

/**
 * Whether `render` gives the end of `promptIds`, which the engine rendered for the same request: the end of the last message
 * and the beginning of the answer. The beginning of the prompt may differ, because a bridge does not contain it.
 */
export async function hasSameEnd(
  request: TurnRequest,
  promptIds: Int32Array,
  endOfTurn: number,
  render: Render,
): Promise<boolean> {
  const rendered = await render(rewritten(request))
  const end = promptIds.lastIndexOf(endOfTurn)
  const needed = Math.min(promptIds.length, end === -1 ? ANSWER_START : promptIds.length - end)
  return commonSuffix(promptIds, rendered).length >= needed
}

/** Tokens that a template may put before an answer: a role, empty reasoning. */
const ANSWER_START = 16

/** Two words without a common prefix or suffix. */
const SENTINELS = ['quartzvixen', 'jumbogalaxyhub'] as const

/** Replaces the text of an answer: the arguments of its last tool call, or its content if it has no tool calls. */
function replaceText(answer: AssistantMessage, word: string): AssistantMessage {
  const { reasoning: _reasoning, ...rest } = answer
  if (answer.toolCalls.length === 0) return { ...rest, content: [{ type: 'text', text: word }] }
  const calls = answer.toolCalls.map((call, i) =>
    i === answer.toolCalls.length - 1 ? { ...call, arguments: JSON.stringify({ value: word }) } : call,
  )
  return { ...rest, toolCalls: calls }
}

function withAnswer(request: TurnRequest, answerAt: number, answer: AssistantMessage): TurnRequest {
  const messages: Message[] = request.messages.map((message, i) => (i === answerAt ? answer : message))
  return rewritten({ ...request, messages })
}

/** Forces rendering from `messages`: the text of the wire contains the real answer. */
function rewritten(request: TurnRequest): TurnRequest {
  return { ...request, wire: { ...request.wire, api: 'rewritten' } }
}

function commonSuffix(one: Int32Array, other: Int32Array): Int32Array {
  let length = 0
  const most = Math.min(one.length, other.length)
  while (length < most && one[one.length - 1 - length] === other[other.length - 1 - length]) length += 1
  return one.subarray(one.length - length)
}
