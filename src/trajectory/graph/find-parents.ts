import { hasIdsAt, TokenHash } from '../../lib/token-hash.ts'

/** A call as its tokens: what the engine read, and what it wrote for each choice. */
export interface TokenCall {
  promptIds: Int32Array
  choices: readonly { ids: Int32Array }[]
}

/** One choice of one call, by their positions in the list that was given. */
export interface ParentRef {
  call: number
  choice: number
}

/**
 * For each call the choices whose prompt and answer together are the longest beginning of its prompt: usually none or one,
 * several where the same answer was sampled twice. One pass over all tokens, whatever the order of the calls.
 *
 * Calls are taken by the length of their prompts. A parent's prompt is shorter than its child's, so when a prompt is read
 * the hash of every possible parent is known, and one running hash over the prompt meets all of them on its way.
 */
export function findParents(calls: readonly TokenCall[]): ParentRef[][] {
  const parents: ParentRef[][] = calls.map(() => [])
  const byHash = new Map<number, ParentRef[]>()
  const lengths = possibleLengths(calls)
  for (const index of byPromptLength(calls)) {
    const call = calls[index] as TokenCall
    const { promptIds } = call
    const hash = new TokenHash()
    const met: ParentRef[][] = []
    let read = 0
    for (const length of lengths) {
      if (length > promptIds.length) break
      hash.add(promptIds, read, length)
      read = length
      const found = byHash.get(hash.key())
      if (found !== undefined) met.push(found)
    }
    hash.add(promptIds, read, promptIds.length)
    parents[index] = longest(calls, promptIds, met)
    for (const [choice, { ids }] of call.choices.entries()) {
      if (promptIds.length === 0 || ids.length === 0) continue
      const whole = hash.copy()
      whole.add(ids, 0, ids.length)
      const key = whole.key()
      const same = byHash.get(key)
      if (same === undefined) byHash.set(key, [{ call: index, choice }])
      else same.push({ call: index, choice })
    }
  }
  return parents
}

/** Of what was met on the way, shortest first, the longest that really is a beginning of the prompt. */
function longest(calls: readonly TokenCall[], promptIds: Int32Array, met: ParentRef[][]): ParentRef[] {
  for (const candidates of met.reverse()) {
    const verified = candidates.filter(({ call, choice }) => {
      const { promptIds: first, choices } = calls[call] as TokenCall
      const ids = choices[choice]?.ids ?? new Int32Array()
      return hasIdsAt(promptIds, 0, first) && hasIdsAt(promptIds, first.length, ids)
    })
    // Equal hashes of unequal lengths cannot both be verified: they would be two lengths of one prompt with one hash.
    if (verified.length > 0) return verified
  }
  return []
}

function possibleLengths(calls: readonly TokenCall[]): number[] {
  const lengths = calls.flatMap(({ promptIds, choices }) =>
    choices.filter(({ ids }) => ids.length > 0).map(({ ids }) => promptIds.length + ids.length),
  )
  return [...new Set(lengths)].toSorted((a, b) => a - b)
}

function byPromptLength(calls: readonly TokenCall[]): number[] {
  return calls
    .map((_, index) => index)
    .toSorted((a, b) => (calls[a]?.promptIds.length ?? 0) - (calls[b]?.promptIds.length ?? 0))
}
