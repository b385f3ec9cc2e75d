import { hasIdsAt, TokenHash } from '../../../lib/net/token-hash.ts'
import type { CallNode } from '../call-graph.ts'

/** Index of calls by the tokens of the prompt, or by the request if the tokens are unknown. */
export class PromptIndex<N extends CallNode> {
  readonly #byTokens = new Map<number, N[]>()
  readonly #byRequest = new Map<string, N>()

  /** Returns the first call with the same prompt. Adds and returns `node` if there is none. */
  findOrAdd(node: N): N {
    const { promptIds } = node.response
    if (promptIds.length === 0) {
      const { request } = node.turn
      const found = this.#byRequest.get(request) ?? node
      this.#byRequest.set(request, found)
      return found
    }
    const hash = new TokenHash()
    hash.add(promptIds, 0, promptIds.length)
    const likely = this.#byTokens.get(hash.key())
    const found = likely?.find((other) => hasSamePrompt(other, promptIds))
    if (found !== undefined) return found
    if (likely === undefined) this.#byTokens.set(hash.key(), [node])
    else likely.push(node)
    return node
  }
}

function hasSamePrompt({ response }: CallNode, promptIds: Int32Array): boolean {
  return response.promptIds.length === promptIds.length && hasIdsAt(response.promptIds, 0, promptIds)
}
