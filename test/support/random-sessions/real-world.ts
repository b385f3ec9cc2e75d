import { loadChatTemplate } from '../../../packages/tiny-engine/src/chat-template.ts'
import { embeddedModelFolder } from '../../../packages/tiny-engine/src/model-package.ts'
import { PromptEncoder } from '../../../packages/tiny-engine/src/prompt.ts'
import { loadTokenizer } from '../../../packages/tiny-engine/src/tokenizer.ts'
import type { WireMessage, World } from './world.ts'

const TOOLS = [
  {
    type: 'function',
    function: { name: 'run', description: null, parameters: { type: 'object', properties: { x: { type: 'string' } } } },
  },
]

/** Loads the embedded model's tokenizer and chat template. */
export async function loadRealWorld(): Promise<World> {
  const folder = embeddedModelFolder()
  const tokenizer = await loadTokenizer(folder)
  const template = await loadChatTemplate(folder, tokenizer)
  const encoder = new PromptEncoder(tokenizer)
  const end = tokenizer.tokenText(tokenizer.eosId)
  return {
    words: ['ok', ' list the files', 'hello world', '你好', ' 3.14', '\n\n', ' indeed', 'x=1;'],
    marks: {
      think: ['<think>\n', '\n</think>\n\n'],
      call: ['<tool_call>\n{"name": "run", "arguments": ', '}\n</tool_call>'],
    },
    end: { text: end, id: tokenizer.eosId, closing: `${end}\n` },
    tools: TOOLS,
    encode: (text) => encoder.encode(text),
    decode: (ids) => tokenizer.decode(ids),
    split(id) {
      const text = tokenizer.tokenText(id)
      if (tokenizer.isSpecial(id) || text.length < 2 || text.includes('\uFFFD')) return [id]
      return [text.slice(0, 1), text.slice(1)].flatMap((part) => Array.from(encoder.encode(part)))
    },
    render: ({ messages, hasTools, isOpen }) =>
      template.toText({
        messages: messages.map(withReadableArguments),
        ...(hasTools ? { tools: TOOLS } : {}),
        addGenerationPrompt: isOpen,
      }),
  }
}

/** Like the gateway: templates reject arguments that are not JSON, but print a string unchanged. */
function withReadableArguments(message: WireMessage): WireMessage {
  const calls = message['tool_calls'] as { function: { arguments: string } }[] | undefined
  if (calls === undefined) return message
  return {
    ...message,
    tool_calls: calls.map((call) => ({
      ...call,
      function: { ...call.function, arguments: readable(call.function.arguments) },
    })),
  }
}

function readable(text: string): string {
  try {
    JSON.parse(text)
    return text
  } catch {
    return JSON.stringify(text)
  }
}
