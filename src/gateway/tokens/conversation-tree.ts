import { hash } from 'node:crypto'
import { isEqualIds } from '../../lib/collections/common-prefix.ts'
import { RecentMap } from '../../lib/collections/recent-map.ts'
import { hasIdsAt } from '../../lib/net/token-hash.ts'
import { charactersOf, type AssistantMessage, type Message, type Tool } from '../../model/message.ts'
import type { Choice, TurnRequest, TurnResponse } from '../../model/turn.ts'
import { hasExactIds } from '../capture/capture-turn.ts'
import { HeldBuffers } from './held-buffers.ts'
import { MessageChain } from './message-chain.ts'
import { addReasoning, repeatsReasoning, trailOf, type ReasoningTrail } from './reasoning-trail.ts'

/** Why a call does not continue an earlier call. The values are those of the edge verdicts of a trajectory. */
export type FreshReason =
  | 'first-call'
  | 'new-conversation'
  | 'forgotten'
  | 'not-exact'
  | 'edited-history'
  | 'tools-changed'
  | 'truncated-turn'
  | 'foreign-turn'
  | 'media'

/** A call that later calls may continue: the ids that the engine read and sampled, and the answer. */
export interface TurnNode {
  turnId: string
  promptIds: Int32Array
  sampledIds: Int32Array
  answer: AssistantMessage
  /** Digest of all fields besides the messages that affect the rendering of a prompt. */
  setting: string
}

export type Found = { node: TurnNode; answerAt: number } | { fork: FreshReason }

interface Node extends TurnNode {
  /** Digest of the conversation up to and including the answer. */
  conversation: string
  answerAt: number
  /** Includes the reasoning of the answer. */
  reasoning: ReasoningTrail
  bytes: number
}

/** Estimate of the memory of a call besides its ids and its text. */
export const CALL_BYTES = 1024
/** Calls that cannot be continued, kept to report the reason. */
const PAST_CALLS_KEPT = 2048
/** Conversations whose first messages are kept. */
const BEGINNINGS_KEPT = 1024

/**
 * The calls of one session by their messages. A new request continues the longest call whose messages and answer it
 * repeats; otherwise the tree returns the reason.
 *
 * The memory is bounded in bytes. Calls that a later call continues are removed first, then the least recently used.
 */
export class ConversationTree {
  readonly #limitBytes: number
  readonly #chain = new MessageChain()
  readonly #tools = new WeakMap<readonly Tool[], string>()
  readonly #byConversation = new Map<string, Node[]>()
  readonly #buffers = new HeldBuffers<Node>()
  /** Both least recently used first. */
  readonly #continued = new Set<Node>()
  readonly #tips = new Set<Node>()
  readonly #past = new RecentMap<'forgotten' | 'not-exact'>(PAST_CALLS_KEPT)
  readonly #beginnings = new RecentMap<true>(BEGINNINGS_KEPT)
  #textBytes = 0
  #isEmpty = true

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes
  }

  get bytes(): number {
    return this.#textBytes + this.#buffers.bytes
  }

  /** Only calls with exact ids can be continued token by token. */
  add(turnId: string, request: TurnRequest, response: TurnResponse): void {
    this.#isEmpty = false
    const digests = this.#chain.digestsOf(request.messages)
    const prompt = digests.at(-1) as string
    this.#beginnings.set(digests[Math.min(2, digests.length - 1)] as string, true)
    if (!hasExactIds(response)) {
      for (const { message } of response.choices) this.#past.set(this.#chain.after(prompt, message), 'not-exact')
      return
    }
    const parent = this.#longest(request.messages, digests)
    if (parent !== undefined) {
      this.#tips.delete(parent)
      this.#use(this.#continued, parent)
    }
    const trail = trailOf(request.messages, parent?.reasoning)
    for (const choice of response.choices) {
      this.#keep({
        turnId,
        promptIds: response.promptIds,
        sampledIds: choice.ids,
        answer: choice.message,
        conversation: this.#chain.after(prompt, choice.message),
        answerAt: request.messages.length,
        setting: this.#settingOf(request, isWhole(choice)),
        reasoning: addReasoning(trail, request.messages.length, choice.message),
        bytes: CALL_BYTES + 2 * charactersOf(choice.message),
      })
    }
    if (parent !== undefined) this.#shareBuffer(parent, response.promptIds)
    this.#evict()
  }

  find(request: TurnRequest): Found {
    if (this.#isEmpty) return { fork: 'first-call' }
    const { messages } = request
    const digests = this.#chain.digestsOf(messages)
    for (let end = messages.length; end > 0; end--) {
      if (messages[end - 1]?.role !== 'assistant') continue
      const conversation = digests[end] as string
      const nodes = this.#byConversation.get(conversation)
      if (nodes !== undefined) return this.#continue(nodes, request)
      const past = this.#past.get(conversation)
      if (past !== undefined) return { fork: past }
    }
    return { fork: this.#reasonFor(messages, digests) }
  }

  #continue(nodes: readonly Node[], request: TurnRequest): Found {
    const { messages } = request
    const whole = this.#settingOf(request, true)
    const same = nodes.filter(({ reasoning }) => repeatsReasoning(messages, reasoning))
    const node = same.findLast(({ setting }) => setting === whole) ?? same.at(-1)
    if (node === undefined) return { fork: 'edited-history' }
    if (node.setting !== whole) {
      return { fork: node.setting === this.#settingOf(request, false) ? 'truncated-turn' : 'tools-changed' }
    }
    const tail = messages.slice(node.answerAt + 1)
    if (tail.length === 0 || tail.some((message) => message.role === 'assistant')) return { fork: 'foreign-turn' }
    if (tail.some((message) => message.content.some((part) => part.type !== 'text'))) return { fork: 'media' }
    this.#use(this.#tips.has(node) ? this.#tips : this.#continued, node)
    return { node, answerAt: node.answerAt }
  }

  /** Returns the call that a request continues by its messages, even if not token by token. */
  #longest(messages: readonly Message[], digests: readonly string[]): Node | undefined {
    for (let end = messages.length; end > 0; end--) {
      if (messages[end - 1]?.role !== 'assistant') continue
      const nodes = this.#byConversation.get(digests[end] as string)
      if (nodes === undefined) continue
      return nodes.findLast(({ reasoning }) => repeatsReasoning(messages, reasoning)) ?? nodes.at(-1)
    }
    return undefined
  }

  #reasonFor(messages: readonly Message[], digests: readonly string[]): FreshReason {
    const hasAnswer = messages.some(({ role }) => role === 'assistant')
    const isKnown = digests.slice(1, 3).some((digest) => this.#beginnings.get(digest))
    return hasAnswer && isKnown ? 'edited-history' : 'new-conversation'
  }

  /** Also contains whether the answer ended naturally. */
  #settingOf(request: TurnRequest, isWholeAnswer: boolean): string {
    const { model, tools, toolChoice, reasoning } = request
    let toolsDigest = this.#tools.get(tools)
    if (toolsDigest === undefined) this.#tools.set(tools, (toolsDigest = hash('sha1', JSON.stringify(tools), 'base64')))
    const choice = toolChoice === 'none' ? 'none' : 'some'
    const kwargs = request.wire.body['chat_template_kwargs'] ?? null
    return JSON.stringify([isWholeAnswer, model, toolsDigest, choice, reasoning ?? null, kwargs])
  }

  // --- memory ---------------------------------------------------------------------------------------------------------

  #keep(node: Node): void {
    const others = this.#byConversation.get(node.conversation) ?? []
    // A retry with the same prompt shares the ids.
    const same = others.find(({ promptIds }) => isEqualIds(promptIds, node.promptIds))
    if (same !== undefined) node.promptIds = same.promptIds
    this.#byConversation.set(node.conversation, [...others, node])
    this.#tips.add(node)
    this.#buffers.hold(node, [node.promptIds, node.sampledIds])
    this.#textBytes += node.bytes
  }

  /** Makes the ids of earlier calls views of a longer prompt, so that the tokens of a conversation are stored once. */
  #shareBuffer(parent: Node, promptIds: Int32Array): void {
    if (!hasIdsAt(promptIds, 0, parent.promptIds)) return
    const { buffer, byteOffset, length } = parent.promptIds
    if (buffer === promptIds.buffer) return
    for (const node of this.#buffers.holdersOf(buffer)) {
      const own = node.promptIds
      if (own.buffer !== buffer || own.byteOffset !== byteOffset || own.length > length) continue
      this.#buffers.release(node, [own, node.sampledIds])
      node.promptIds = promptIds.subarray(0, own.length)
      if (hasIdsAt(promptIds, own.length, node.sampledIds)) {
        node.sampledIds = promptIds.subarray(own.length, own.length + node.sampledIds.length)
      }
      this.#buffers.hold(node, [node.promptIds, node.sampledIds])
    }
  }

  #use(set: Set<Node>, node: Node): void {
    set.delete(node)
    set.add(node)
  }

  #evict(): void {
    for (const set of [this.#continued, this.#tips]) {
      for (const node of set) {
        if (this.bytes <= this.#limitBytes) return
        set.delete(node)
        this.#forget(node)
      }
    }
  }

  #forget(node: Node): void {
    const others = (this.#byConversation.get(node.conversation) ?? []).filter((other) => other !== node)
    if (others.length > 0) this.#byConversation.set(node.conversation, others)
    else {
      this.#byConversation.delete(node.conversation)
      this.#past.set(node.conversation, 'forgotten')
    }
    this.#buffers.release(node, [node.promptIds, node.sampledIds])
    this.#textBytes -= node.bytes
  }
}

/** Whether the answer ended naturally. A stop string cuts the text but not the ids, so the harness repeats less text. */
function isWhole({ finishReason, stopReason }: Choice): boolean {
  return (finishReason === 'stop' || finishReason === 'tool-calls') && stopReason === undefined
}
