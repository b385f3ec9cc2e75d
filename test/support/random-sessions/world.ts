import type { AssistantMessage } from '../../../src/model/message.ts'

/** A message in Chat Completions' form. */
export type WireMessage = Readonly<Record<string, unknown>> & { role: string }

/** A model as far as tokens go: its tokenizer, its chat template and the form of its answers. */
export interface World {
  /** What people and policies say, a few letters or words each. */
  words: readonly string[]
  /** How answers spell thoughts and tool calls. */
  marks: { think: readonly [string, string]; call: readonly [string, string] }
  /** The text of the token that ends a turn, its id, and all that the template puts behind an answer. */
  end: { text: string; id: number; closing: string }
  tools: readonly unknown[]
  /** The tokenizer's own way to spell a text; there are others. */
  encode(text: string): Int32Array
  decode(ids: Int32Array): string
  /** The same text in smaller tokens; just itself where there are none. */
  split(id: number): readonly number[]
  /** The conversation in the template's form. */
  render(prompt: { messages: readonly WireMessage[]; hasTools: boolean; isOpen: boolean }): string
}

/** What a policy means to say. */
export interface Thought {
  reasoning?: string
  text: string
  /** Arguments as they are to be sampled. */
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

/** What an engine's parsers make of a sampled text, which may have been cut anywhere. */
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

/** Every token of the toy by its text. So few, that unrelated conversations often share long beginnings. */
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
