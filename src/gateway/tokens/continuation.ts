import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import { dropsReasoning, findBridge, hasSameEnd, type BridgeFailure, type Render } from './bridge.ts'
import { ConversationTree, type FreshReason } from './conversation-tree.ts'

/**
 * What happens where the chat template drops the reasoning of an earlier turn. `template`: the engine renders the prompt, as
 * in a deployment, and a new segment begins. `preserve`: the prompt literally continues, with the reasoning.
 */
export type ThinkingPolicy = 'template' | 'preserve'

/** `extends`: the prompt consists of the ids of an earlier call and a bridge. `fresh`: the engine renders the prompt. */
export type Continuation =
  | { kind: 'extends'; of: string; promptIds: Int32Array }
  | { kind: 'fresh'; reason: FreshReason | BridgeFailure | 'render-failed' | 'render-differs' | 'needs-chat' }

/** Makes the prompts of one session literal extensions of each other, where this is provably equal to rendering. */
export class Continuations {
  readonly #tree: ConversationTree
  readonly #thinking: ThinkingPolicy
  /** Settings with which `render` gave the end of a prompt that the engine itself had rendered. */
  readonly #proven = new Set<string>()

  constructor(options: { thinking: ThinkingPolicy; memoryBytes: number }) {
    this.#tree = new ConversationTree(options.memoryBytes)
    this.#thinking = options.thinking
  }

  remember(turnId: string, request: TurnRequest, response: TurnResponse): void {
    this.#tree.add(turnId, request, response)
  }

  /** Returns `fresh` unless the continuation is proven. `needsProof`: `render` may ignore settings of a chat request. */
  async find(request: TurnRequest, render: Render, { needsProof = false } = {}): Promise<Continuation> {
    const found = this.#tree.find(request)
    if ('fork' in found) return { kind: 'fresh', reason: found.fork }
    const { node, answerAt } = found
    const { answer, promptIds, sampledIds, turnId } = node
    const endOfTurn = sampledIds.at(-1)
    if (endOfTurn === undefined) return { kind: 'fresh', reason: 'truncated-turn' }
    try {
      if (needsProof && !this.#proven.has(node.setting)) {
        const earlier = { ...request, messages: request.messages.slice(0, answerAt) }
        if (!(await hasSameEnd(earlier, promptIds, endOfTurn, render)))
          return { kind: 'fresh', reason: 'render-differs' }
        this.#proven.add(node.setting)
      }
      if (
        this.#thinking === 'template' &&
        answer.reasoning &&
        (await dropsReasoning(request, answerAt, answer, render))
      ) {
        return { kind: 'fresh', reason: 'reasoning-stripped' }
      }
      const bridge = await findBridge(request, answerAt, answer, endOfTurn, render)
      if (typeof bridge === 'string') return { kind: 'fresh', reason: bridge }
      return { kind: 'extends', of: turnId, promptIds: concat(promptIds, sampledIds, bridge) }
    } catch {
      return { kind: 'fresh', reason: 'render-failed' }
    }
  }
}

function concat(...parts: readonly Int32Array[]): Int32Array {
  const joined = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0))
  let at = 0
  for (const part of parts) {
    joined.set(part, at)
    at += part.length
  }
  return joined
}
