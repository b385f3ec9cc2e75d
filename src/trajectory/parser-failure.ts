import { isJson } from '../lib/json/json-text.ts'
import { textOf } from '../model/message.ts'
import type { Choice } from '../model/turn.ts'

/** Start of a tool call in the text of common chat templates, at the start of a line. */
const RAW_CALL = /^[ \t]*(?:<tool_call>|<function=|<\|tool_call|\[TOOL_CALLS\])/m

const CODE_FENCE = /^[ \t]*(`{3,}|~{3,})[^\n]*\n[\s\S]*?(?:^[ \t]*\1[ \t]*$|$(?![\s\S]))/gm

/** Describes why the tool call of an answer could not be parsed; undefined if there is no problem. */
export function parserFailureOf({ message, finishReason }: Choice): string | undefined {
  const broken = message.toolCalls.find(({ arguments: args }) => args !== '' && !isJson(args))
  if (broken !== undefined) return `the arguments of ${broken.name} are not JSON`
  if (message.toolCalls.length > 0) return undefined
  if (finishReason === 'tool-calls') return 'it ended as a tool call, but has none'
  return RAW_CALL.test(textOf(message).replace(CODE_FENCE, '')) ? 'a tool call was left in the text' : undefined
}
