/** A call as lists of numbers, as JSON.parse returns them. */
export interface ListCall {
  prompt: number[]
  sampled: number[]
}

export interface ListTrace {
  ids: number[]
  mask: number[]
}

/**
 * A simple implementation: for each call, slices its prompt to the length of each open chain and compares. Returns the same
 * rows as `prefix_merging` for a conversation without branches.
 */
export function mergeByLists(calls: readonly ListCall[]): ListTrace[] {
  const chains: ListTrace[] = []
  for (const { prompt, sampled } of calls) {
    let joined = chains.find((chain) => isEqual(prompt.slice(0, chain.ids.length), chain.ids))
    if (joined === undefined) chains.push((joined = { ids: [], mask: [] }))
    const between = prompt.slice(joined.ids.length)
    joined.ids = [...joined.ids, ...between, ...sampled]
    joined.mask = [...joined.mask, ...between.map(() => 0), ...sampled.map(() => 1)]
  }
  return chains
}

function isEqual(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((value, i) => value === b[i])
}
