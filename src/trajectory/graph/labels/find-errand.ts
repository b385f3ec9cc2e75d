import { textOf } from '../../../model/message.ts'
import type { Turn } from '../../../model/turn.ts'
import type { CallNode } from '../call-graph.ts'
import type { Histories } from '../parents/histories.ts'
import { SHORTEST_TEXT, stringsIn, ToolTexts, type ToolUse } from './tool-texts.ts'
import { WorkLimit } from '../work-limit.ts'

/** Characters that are searched for errands of all conversations of a session; what is not found by then is not said. */
const CHARACTERS_SEARCHED = 2 ** 28

type Conversation = readonly CallNode[]

/** Who asked for a conversation by a tool call, and who got its answer; in words. */
interface Errand {
  asked?: string
  returned?: string
}

/**
 * Looks for what ties a sub-agent to the one that sent it: the first user message of its conversation stands in the
 * arguments of a tool call made before, and its last answer in a message to another conversation afterwards.
 */
export class Errands {
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

  find(conversation: Conversation): Errand {
    const asked = this.#whoAsked(conversation)
    if (asked === undefined) return {}
    const returned = this.#whoGotAnswer(conversation, asked)
    return {
      asked: `its first message stands in the arguments of ${asked.name} in ${asked.node.turn.id}`,
      ...(returned === undefined ? {} : { returned: `its last answer stands in a message of ${returned.id}` }),
    }
  }

  #whoAsked(conversation: Conversation): ToolUse | undefined {
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

  /** The conversation that asked is looked at first: it is the one that waits for the answer. */
  #whoGotAnswer(conversation: Conversation, asked: ToolUse): Turn | undefined {
    const last = conversation.at(-1) as CallNode
    const { message } = last.choice
    // Some agents must hand their result in by a tool call.
    const results = [textOf(message).trim(), ...message.toolCalls.flatMap((call) => stringsIn(call.arguments))]
    const sought = results.filter((text) => text.length >= SHORTEST_TEXT)
    if (sought.length === 0) return undefined
    const asker = this.#conversationOf.get(asked.node) as Conversation
    for (const other of [asker, ...this.#conversations]) {
      if (other === conversation || !this.#work.spend(other.length)) continue
      const turn = other.findLast((node) => node.turn.startedAt >= last.turn.startedAt)?.turn
      if (turn !== undefined && this.#hears(turn, sought)) return turn
    }
    return undefined
  }

  #hears(turn: Turn, sought: readonly string[]): boolean {
    if (!this.#work.spend(turn.request.length * (1 + sought.length))) return false
    const heard = this.#histories.requestOf(turn)?.messages.filter(({ role }) => role === 'tool' || role === 'user')
    return heard?.some((from) => sought.some((text) => textOf(from).includes(text))) === true
  }
}
