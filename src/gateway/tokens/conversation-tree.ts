import { hash } from 'node:crypto'
import { hasIdsAt } from '../../lib/token-hash.ts'
import { textOf, type AssistantMessage, type ContentPart, type Message, type Tool } from '../../model/message.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import { isSameJson } from '../session-memory.ts'

/** Why a call does not go on from an earlier one. The words are those of the edge verdicts of a trajectory. */
export type ForkReason =
  | 'first-call'
  | 'new-conversation'
  | 'edited-history'
  | 'tools-changed'
  | 'truncated-turn'
  | 'foreign-turn'
  | 'media'

/** A call that others may go on from: what the engine read and wrote, and the conversation it stands for. */
export interface TurnNode {
  turnId: string
  promptIds: Int32Array
  sampledIds: Int32Array
  answer: AssistantMessage
}

export type Found = { node: TurnNode; answerAt: number } | { fork: ForkReason }

/** How many calls of a session can be gone on from: an agent and its sub-agents go on from one of their last. */
const NODES_KEPT = 16

/**
 * The calls of one session by the messages that led to them. A new request goes on from the deepest call whose messages
 * and answer it repeats; anything less is a new beginning, and this says why.
 */
export class ConversationTree {
  /** Messages that repeat are the same objects, where the dialect can tell. */
  readonly #digests = new WeakMap<Message, string>()
  readonly #tools = new WeakMap<readonly Tool[], string>()
  #nodes: (TurnNode & { setting: string; messages: readonly string[] })[] = []

  /** Only what the engine itself reported, sampled to its natural end, can be continued token by token. */
  add(turnId: string, request: TurnRequest, response: TurnResponse): void {
    const [choice, ...others] = response.choices
    if (response.grade !== 'exact' || choice === undefined || others.length > 0) return
    const node = { turnId, promptIds: response.promptIds, sampledIds: choice.ids, answer: choice.message }
    // A stop string cuts the text but not the ids, so what the harness echoes is not what was sampled.
    const isWhole =
      (choice.finishReason === 'stop' || choice.finishReason === 'tool-calls') && choice.stopReason === undefined
    this.#keepOnce(node.promptIds)
    this.#nodes.push({ ...node, setting: this.#settingOf(request, isWhole), messages: this.#digestsOf(request) })
    if (this.#nodes.length > NODES_KEPT) this.#nodes.shift()
  }

  /**
   * A prompt goes on from earlier ones. Those are kept as views of its own memory from here on, so that a conversation's
   * tokens are kept once and not once a call.
   */
  #keepOnce(promptIds: Int32Array): void {
    const before = this.#nodes.findLast((node) => hasIdsAt(promptIds, 0, node.promptIds))
    if (before === undefined) return
    const { buffer, byteOffset } = before.promptIds
    for (const node of this.#nodes) {
      const { length } = node.promptIds
      const isBeginning = node.promptIds.buffer === buffer && node.promptIds.byteOffset === byteOffset
      if (!isBeginning || length > before.promptIds.length) continue
      node.promptIds = promptIds.subarray(0, length)
      if (hasIdsAt(promptIds, length, node.sampledIds)) {
        node.sampledIds = promptIds.subarray(length, length + node.sampledIds.length)
      }
    }
  }

  find(request: TurnRequest): Found {
    if (this.#nodes.length === 0) return { fork: 'first-call' }
    const messages = this.#digestsOf(request)
    const candidates = this.#nodes
      .filter(
        (node) => node.messages.length < messages.length && node.messages.every((digest, i) => digest === messages[i]),
      )
      .toSorted((a, b) => b.messages.length - a.messages.length)
    const echoed = candidates.find((node) => isEcho(request.messages[node.messages.length], node.answer))
    if (echoed === undefined) return { fork: this.#whyNone(messages, candidates.length > 0) }
    if (echoed.setting !== this.#settingOf(request, true)) {
      return { fork: echoed.setting === this.#settingOf(request, false) ? 'truncated-turn' : 'tools-changed' }
    }
    const answerAt = echoed.messages.length
    const tail = request.messages.slice(answerAt + 1)
    if (tail.length === 0 || tail.some((message) => message.role === 'assistant')) return { fork: 'foreign-turn' }
    if (tail.some((message) => message.content.some((part) => part.type !== 'text'))) return { fork: 'media' }
    return { node: echoed, answerAt }
  }

  #digestsOf(request: TurnRequest): readonly string[] {
    return request.messages.map((message) => {
      let digest = this.#digests.get(message)
      if (digest === undefined) this.#digests.set(message, (digest = digestOf(message)))
      return digest
    })
  }

  /** What besides the messages decides how a prompt is written. */
  #settingOf(request: TurnRequest, isWhole: boolean): string {
    const { model, tools, toolChoice, reasoning } = request
    let toolsDigest = this.#tools.get(tools)
    if (toolsDigest === undefined) this.#tools.set(tools, (toolsDigest = hash('sha1', JSON.stringify(tools), 'base64')))
    const choice = toolChoice === 'none' ? 'none' : 'some'
    const kwargs = request.wire.body['chat_template_kwargs'] ?? null
    return JSON.stringify([isWhole, model, toolsDigest, choice, reasoning ?? null, kwargs])
  }

  #whyNone(messages: readonly string[], hasPrefix: boolean): ForkReason {
    if (hasPrefix) return 'edited-history'
    return this.#nodes.some((node) => node.messages[0] === messages[0] && node.messages[1] === messages[1])
      ? 'edited-history'
      : 'new-conversation'
  }
}

/** Equal for messages that mean the same: parts joined, and how a harness wraps text not looked at. */
function digestOf(message: Message): string {
  const calls = message.role === 'assistant' ? message.toolCalls.map(({ name, arguments: args }) => [name, args]) : []
  const id = message.role === 'tool' ? message.toolCallId : ''
  const role = message.role === 'developer' ? 'system' : message.role
  return hash('sha1', JSON.stringify([role, message.content.map(partOf), calls, id]), 'base64')
}

function partOf(part: ContentPart): unknown {
  return part.type === 'text' ? part.text : part
}

/** Whether the harness sent back what it was given. Most drop the reasoning; none may change it. */
function isEcho(message: Message | undefined, answer: AssistantMessage): boolean {
  if (message?.role !== 'assistant' || textOf(message) !== textOf(answer)) return false
  if (
    message.reasoning !== undefined &&
    message.reasoning !== '' &&
    message.reasoning.trim() !== answer.reasoning?.trim()
  ) {
    return false
  }
  const [echoed, given] = [message.toolCalls, answer.toolCalls]
  return (
    echoed.length === given.length &&
    echoed.every((call, i) => {
      const original = given[i]
      return (
        call.name === original?.name &&
        (call.arguments === original.arguments || isSameJson(call.arguments, original.arguments))
      )
    })
  )
}
