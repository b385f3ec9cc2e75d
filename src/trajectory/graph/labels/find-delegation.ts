import { textOf } from '../../../model/message.ts'
import type { Turn } from '../../../model/turn.ts'
import type { CallNode } from '../call-graph.ts'
import type { Histories } from '../parents/histories.ts'
import { SHORTEST_TEXT, stringsIn, ToolTexts, type ToolUse } from './tool-texts.ts'
import { WorkLimit } from '../work-limit.ts'

/** Search limit in characters for all conversations of a session. Delegations beyond it are not found. */
const CHARACTERS_SEARCHED = 2 ** 28

type Conversation = readonly CallNode[]

/** Descriptions of the tool call that started a conversation and of the call that received its result. */
interface Delegation {
  asked?: string
  returned?: string
}

/**
 * Finds the tool call that started a sub-agent: its arguments contain the first user message of the sub-agent's conversation.
 * Then finds the later call of another conversation whose messages contain the sub-agent's last answer.
 */
export class Delegations {
  readonly #histories: Histories
  readonly #conversations: readonly Conversation[]
  readonly #conversationOf: ReadonlyMap<CallNode, Conversation>
  readonly #toolTexts: ToolTexts
  readonly #work: WorkLimit

  constructor(conversations: readonly Conversation[], histories: Histories, characters = CHARACTERS_SEARCHED) {
    this.#histories = histories
    this.#conversations = conversations
    this.#conversationOf = new Map(conversations.flatMap((nodes) => nodes.map((node) => [node, nodes] as const)))
    this.#work = new WorkLimit(characters)
    this.#toolTexts = new ToolTexts(conversations.flat(), this.#work)
  }

  find(conversation: Conversation): Delegation {
    const asked = this.#startedBy(conversation)
    if (asked === undefined) return {}
    const returned = this.#receiverOf(conversation, asked)
    return {
      asked: `its first message stands in the arguments of ${asked.name} in ${asked.node.turn.id}`,
      returned: returned && `its last answer stands in a message of ${returned.id}`,
    }
  }

  #startedBy(conversation: Conversation): ToolUse | undefined {
    const { turn } = conversation[0] as CallNode
    const messages = this.#histories.requestOf(turn)?.messages ?? []
    const answered = messages.findIndex(({ role }) => role === 'assistant')
    const tasks = messages
      .slice(0, answered === -1 ? messages.length : answered)
      .filter(({ role }) => role === 'user')
      .flatMap(({ content }) => content)
      .map((part) => (part.type === 'text' ? part.text.trim() : ''))
      .filter((text) => text.length >= SHORTEST_TEXT)
    const isEligible = (node: CallNode): boolean =>
      node.turn.startedAt <= turn.startedAt && this.#conversationOf.get(node) !== conversation
    return this.#toolTexts.find(tasks, isEligible)
  }

  /** Searches the conversation of the tool call first: it waits for the answer. */
  #receiverOf(conversation: Conversation, asked: ToolUse): Turn | undefined {
    const last = conversation.at(-1) as CallNode
    const { message } = last.choice
    // Some sub-agents return their result by a tool call.
    const results = [textOf(message).trim(), ...message.toolCalls.flatMap((call) => stringsIn(call.arguments))]
    const sought = results.filter((text) => text.length >= SHORTEST_TEXT)
    if (sought.length === 0) return undefined
    const caller = this.#conversationOf.get(asked.node) as Conversation
    for (const other of [caller, ...this.#conversations]) {
      if (other === conversation || !this.#work.spend(other.length)) continue
      const turn = other.findLast((node) => node.turn.startedAt >= last.turn.startedAt)?.turn
      if (turn !== undefined && this.#contains(turn, sought)) return turn
    }
    return undefined
  }

  #contains(turn: Turn, sought: readonly string[]): boolean {
    if (!this.#work.spend(turn.request.length * (1 + sought.length))) return false
    const received = this.#histories.requestOf(turn)?.messages.filter(({ role }) => role === 'tool' || role === 'user')
    return received?.some((from) => sought.some((text) => textOf(from).includes(text))) === true
  }
}
