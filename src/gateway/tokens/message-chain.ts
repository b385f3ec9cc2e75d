import { hash } from 'node:crypto'
import { sortedJson } from '../../lib/json/json-text.ts'
import { textOf, type ContentPart, type Message } from '../../model/message.ts'

/**
 * Digests of the beginnings of conversations. Two lists of messages have the same digest when they differ only in details
 * that harnesses change without intent: how an answer is split into text parts, answers of white space only, the notation
 * of JSON, and reasoning.
 */
export class MessageChain {
  /** Dialects return the same object for a message that was part of an earlier request. */
  readonly #known = new WeakMap<Message, { before: string; after: string }>()

  /** Element `i` is the digest of the first `i` messages. */
  digestsOf(messages: readonly Message[]): readonly string[] {
    const digests = ['']
    for (const [i, message] of messages.entries()) digests.push(this.after(digests[i] as string, message))
    return digests
  }

  /** Returns the digest of a list with the digest `before`, extended by `message`. */
  after(before: string, message: Message): string {
    const known = this.#known.get(message)
    if (known?.before === before) return known.after
    const after = hash('sha1', JSON.stringify([before, meaningOf(message)]), 'base64')
    this.#known.set(message, { before, after })
    return after
  }
}

function meaningOf(message: Message): unknown {
  switch (message.role) {
    case 'assistant': {
      const text = textOf(message)
      const calls = message.toolCalls.map(({ name, arguments: args }) => [name, sortedJson(args) ?? args])
      const others = message.content.filter((part) => part.type !== 'text')
      return ['assistant', text.trim() === '' ? '' : text, others, calls]
    }
    case 'tool':
      return ['tool', message.content.map(meaningOfPart), message.toolCallId]
    case 'user':
      return ['user', message.content.map(meaningOfPart)]
    case 'system':
    case 'developer':
      return ['system', message.content.map(meaningOfPart)]
  }
}

function meaningOfPart(part: ContentPart): unknown {
  return part.type === 'text' ? part.text : part
}
