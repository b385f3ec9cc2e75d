import type { AssistantMessage } from '../../../src/model/message.ts'

/** A message in the Chat Completions format. */
export type WireMessage = Readonly<Record<string, unknown>> & { role: string }

/** A model without inference: its tokenizer, its chat template and the format of its answers. */
export interface World {
  /** Texts of users and policies, a few letters or words each. */
  words: readonly string[]
  /** Tags of reasoning and tool calls in answers. */
  marks: { think: readonly [string, string]; call: readonly [string, string] }
  /** Text and id of the end-of-turn token, and the template's text after an answer. */
  end: { text: string; id: number; closing: string }
  tools: readonly unknown[]
  /** The tokenizer's encoding of a text, one of several possible encodings. */
  encode(text: string): Int32Array
  decode(ids: Int32Array): string
  /** The same text in smaller tokens; the token itself if there are none. */
  split(id: number): readonly number[]
  /** Renders a conversation with the template. */
  render(prompt: { messages: readonly WireMessage[]; hasTools: boolean; isOpen: boolean }): string
}

/** Content of an answer before tokenisation. */
export interface Thought {
  reasoning?: string
  text: string
  /** Arguments as sampled. */
  call?: string
}

export function thoughtToText(world: World, { reasoning, text, call }: Thought): string {
  const { think, call: marks } = world.marks
  return [
    reasoning === undefined ? '' : think[0] + reasoning + think[1],
    text,
    call === undefined ? '' : marks[0] + call + marks[1],
  ].join('')
}

/** Parses a sampled text, which may be truncated anywhere, like an engine. */
export function parseAnswer(world: World, text: string, callId: string): AssistantMessage {
  const { think, call } = world.marks
  let rest = text
  let reasoning: string | undefined
  if (rest.startsWith(think[0])) {
    const end = rest.indexOf(think[1])
    reasoning = rest.slice(think[0].length, end === -1 ? undefined : end)
    rest = end === -1 ? '' : rest.slice(end + think[1].length)
  }
  const at = rest.endsWith(call[1]) ? rest.indexOf(call[0]) : -1
  const toolCalls =
    at === -1 ? [] : [{ id: callId, name: 'run', arguments: rest.slice(at + call[0].length, -call[1].length) }]
  const said = at === -1 ? rest : rest.slice(0, at)
  return {
    role: 'assistant',
    content: said === '' ? [] : [{ type: 'text', text: said }],
    ...(reasoning === undefined ? {} : { reasoning }),
    toolCalls,
  }
}

// --- a toy ------------------------------------------------------------------------------------------------------------

/** All tokens of the toy by their text. So few that unrelated conversations often share long prefixes. */
const TOY_TOKENS = '$ ^ s u m t < > [ ] a b ab ba aa {"x":" {"x":_" " "} T'
  .split(' ')
  .map((text) => text.replace('_', ' '))
const TOY_LONGEST_FIRST = TOY_TOKENS.map((text, id) => ({ text, id })).toSorted((a, b) => b.text.length - a.text.length)
const TOY_ROLES: Readonly<Record<string, string>> = { system: 's', user: 'u', assistant: 'm', tool: 't' }

export const toyWorld: World = {
  words: ['a', 'b', 'ab', 'ba', 'aab'],
  marks: { think: ['<', '>'], call: ['[', ']'] },
  end: { text: '$', id: 0, closing: '$' },
  tools: [{ type: 'function', function: { name: 'run', parameters: { type: 'object' } } }],
  encode(text) {
    const ids: number[] = []
    for (let at = 0; at < text.length;) {
      const token = TOY_LONGEST_FIRST.find((candidate) => text.startsWith(candidate.text, at))
      if (token === undefined) throw new Error(`The toy has no token for ${text.slice(at)}.`)
      ids.push(token.id)
      at += token.text.length
    }
    return Int32Array.from(ids)
  },
  decode: (ids) => Array.from(ids, (id) => TOY_TOKENS[id]).join(''),
  split(id) {
    const text = TOY_TOKENS[id] ?? ''
    return /^[ab]{2}$/.test(text) ? Array.from(text, (letter) => TOY_TOKENS.indexOf(letter)) : [id]
  },
  render: ({ messages, hasTools, isOpen }) =>
    [...messages.map((message, i) => toyMessage(message, hasTools && i === 0)), isOpen ? '^m' : ''].join(''),
}

function toyMessage(message: WireMessage, withTools: boolean): string {
  const calls = (message['tool_calls'] ?? []) as { function: { arguments: string } }[]
  const reasoning = message['reasoning_content'] as string | undefined
  const text = thoughtToText(toyWorld, {
    text: (message['content'] ?? '') as string,
    ...(reasoning === undefined ? {} : { reasoning }),
    ...(calls[0] === undefined ? {} : { call: calls[0].function.arguments }),
  })
  return `^${TOY_ROLES[message.role]}${text}${withTools ? 'T' : ''}$`
}
