import type { AssistantMessage, Message } from '../../model/message.ts'
import type { TurnRequest } from '../../model/turn.ts'

/** Prompt ids of a request, as the engine's own template and tokenizer make them. */
export type Render = (request: TurnRequest) => Promise<Int32Array>

export type BridgeFailure = 'template-moves' | 'reasoning-stripped'

/**
 * The ids that stand between a sampled answer and the next one: what the template writes for the messages that followed.
 *
 * The conversation is rendered twice with two different words in place of the answer. What both renderings end with does
 * not depend on the answer; its first end-of-turn id closes the answer's turn, and the bridge is what follows. It begins
 * right after a special token, so its ids do not depend on what stands before. No template and no tokenizer is needed
 * here, and end-of-turn strings in anyone's text do no harm, because they stand before the place that is looked at.
 */
export async function findBridge(
  request: TurnRequest,
  answerAt: number,
  answer: AssistantMessage,
  endOfTurn: number,
  render: Render,
): Promise<Int32Array | BridgeFailure> {
  const [one, other] = await Promise.all(
    SENTINELS.map((word) => render(withAnswer(request, answerAt, disguise(answer, word)))),
  )
  const suffix = commonSuffix(one as Int32Array, other as Int32Array)
  const end = suffix.indexOf(endOfTurn)
  // Nothing differs, or the answer is not where it should be: the template moves or drops messages.
  if (end === -1 || suffix.length === one?.length) return 'template-moves'
  return suffix.slice(end + 1)
}

/** Whether the template leaves out what the model thought in this turn when it writes it into a later prompt. */
export async function dropsReasoning(
  request: TurnRequest,
  answerAt: number,
  answer: AssistantMessage,
  render: Render,
): Promise<boolean> {
  const [one, other] = await Promise.all(
    SENTINELS.map((word) => render(withAnswer(request, answerAt, { ...answer, reasoning: word }))),
  )
  return one?.length === other?.length && one?.every((id, i) => id === other?.[i]) === true
}

/** Two words with nothing in common at either end. */
const SENTINELS = ['quartzvixen', 'jumbogalaxyhub'] as const

/** The answer with another text in the same place: in the last call's arguments if it has calls, else in the content. */
function disguise(answer: AssistantMessage, word: string): AssistantMessage {
  const { reasoning: _reasoning, ...rest } = answer
  if (answer.toolCalls.length === 0) return { ...rest, content: [{ type: 'text', text: word }] }
  const calls = answer.toolCalls.map((call, i) =>
    i === answer.toolCalls.length - 1 ? { ...call, arguments: JSON.stringify({ value: word }) } : call,
  )
  return { ...rest, toolCalls: calls }
}

function withAnswer(request: TurnRequest, answerAt: number, answer: AssistantMessage): TurnRequest {
  const messages: Message[] = request.messages.map((message, i) => (i === answerAt ? answer : message))
  // Written from our own words: the bytes of the wire hold the real answer.
  return { ...request, messages, wire: { ...request.wire, api: 'rewritten' } }
}

function commonSuffix(one: Int32Array, other: Int32Array): Int32Array {
  let length = 0
  const most = Math.min(one.length, other.length)
  while (length < most && one[one.length - 1 - length] === other[other.length - 1 - length]) length += 1
  return one.subarray(one.length - length)
}
