import { textOf, type AssistantMessage } from '../model/message.ts'
import type { SampleMessages } from '../model/sample.ts'
import type { Row } from './builders/builder.ts'
import type { CallNode, RequestReader } from './graph/call-graph.ts'

/**
 * What was said in a row, in Chat Completions' form. The last request holds the whole conversation; its assistant turns
 * are what the harness made of the answers, so the answers themselves are put in their place.
 */
export function messagesOf(row: Row, reader: RequestReader): SampleMessages {
  const calls = row.parts.filter((part) => part.isSampled).map(({ call }) => call)
  const [first, last] = [calls[0] as CallNode, calls.at(-1) as CallNode]
  const prompt = reader.readPrompt(first.turn)
  if (first === last) return { prompt: prompt.messages, response: [toChatMessage(first)], tools: prompt.tools }
  const tail = reader.readPrompt(last.turn).messages.slice(prompt.messages.length)
  const response = substitute(tail, calls.slice(0, -1)) ?? stepwise(calls, reader)
  return { prompt: prompt.messages, response: [...response, toChatMessage(last)], tools: prompt.tools }
}

/** Undefined where the assistant turns are not one for each call. */
function substitute(messages: readonly unknown[], calls: readonly CallNode[]): unknown[] | undefined {
  const answers = calls.values()
  if (messages.filter(isAssistant).length !== calls.length) return undefined
  return messages.map((message) => (isAssistant(message) ? toChatMessage(answers.next().value as CallNode) : message))
}

/** Request by request, what each has more than the one before. */
function stepwise(calls: readonly CallNode[], reader: RequestReader): unknown[] {
  let before: CallNode | undefined
  let seen = 0
  return calls.flatMap((call) => {
    const { messages } = reader.readPrompt(call.turn)
    const added = before === undefined ? [] : [toChatMessage(before), ...messages.slice(seen).filter(isNotAssistant)]
    before = call
    seen = messages.length
    return added
  })
}

function isAssistant(message: unknown): boolean {
  return (message as { role?: unknown } | null)?.role === 'assistant'
}

function isNotAssistant(message: unknown): boolean {
  return !isAssistant(message)
}

function toChatMessage({ choice }: CallNode): Record<string, unknown> {
  return chatMessageOf(choice.message)
}

/** An assistant turn as Chat Completions writes it; reasoning under the name engines use. */
export function chatMessageOf(message: AssistantMessage): Record<string, unknown> {
  const text = textOf(message)
  return {
    role: 'assistant',
    content: text === '' && message.toolCalls.length > 0 ? null : text,
    ...(message.reasoning === undefined ? {} : { reasoning_content: message.reasoning }),
    ...(message.toolCalls.length === 0
      ? {}
      : {
          tool_calls: message.toolCalls.map((call) => ({
            id: call.id,
            type: 'function',
            function: { name: call.name, arguments: call.arguments },
          })),
        }),
  }
}
