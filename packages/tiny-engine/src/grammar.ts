import type { TokenTexts } from './choice.ts'
import type { ChatBody } from './wire-schema.ts'

/**
 * Returns the ids that may begin the answer under the grammar of a request; undefined without a grammar. vLLM enforces a
 * grammar on every token. This engine enforces only the first token: enough to change the log probabilities in the same way.
 */
export function firstIdsOf(body: ChatBody, texts: TokenTexts): readonly number[] | undefined {
  const start = startOf(body)
  if (start === undefined) return undefined
  const ids = Array.from({ length: texts.tokenizer.vocabularySize }, (_, id) => id)
  return ids.filter((id) => {
    const text = texts.wholeText(id) ?? ''
    return text !== '' && (text.startsWith(start) || start.startsWith(text))
  })
}

function startOf({ tools, tool_choice: choice, response_format: format }: ChatBody): string | undefined {
  const isForced = choice === 'required' || typeof choice === 'object'
  if (tools != null && choice != null && isForced) return '<tool_call>'
  return format != null && format.type !== 'text' ? '{' : undefined
}
