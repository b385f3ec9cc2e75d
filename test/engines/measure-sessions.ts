import type { SessionRecord } from '../../src/model/session.ts'
import type { Turn } from '../../src/model/turn.ts'

/** Tokens of one call: what the engine read, what it sampled, and the log probabilities that it reported. */
export interface Sequence {
  promptIds: readonly number[]
  ids: readonly number[]
  logprobs: readonly number[]
}

export interface Measured {
  calls: number
  exactCalls: number
  /** Calls with a call before them in the same conversation. */
  edges: number
  /** Edges whose prompt begins with the previous prompt and the sampled tokens. */
  exactEdges: number
  /** Edges after a call that the model ended itself, not a limit. */
  naturalEdges: number
  exactNaturalEdges: number
  /** Training samples, if calls are merged along exact edges, and their tokens. */
  samples: number
  tokens: number
}

/** Measures sessions that contain one unedited conversation each. */
export function measureSessions(sessions: readonly SessionRecord[]): Measured {
  const measured: Measured = {
    calls: 0,
    exactCalls: 0,
    edges: 0,
    exactEdges: 0,
    naturalEdges: 0,
    exactNaturalEdges: 0,
    samples: 0,
    tokens: 0,
  }
  for (const { turns } of sessions) {
    for (const [i, turn] of turns.entries()) {
      measured.calls += 1
      if (turn.response?.grade === 'exact') measured.exactCalls += 1
      const before = turns[i - 1]
      if (before === undefined) continue
      const isExact = extendsLiterally(toSequence(before), toSequence(turn).promptIds)
      const isNatural = before.response?.choices[0]?.finishReason !== 'length'
      measured.edges += 1
      measured.exactEdges += Number(isExact)
      measured.naturalEdges += Number(isNatural)
      measured.exactNaturalEdges += Number(isNatural && isExact)
    }
    const samples = longestSequences(turns.map(toSequence))
    measured.samples += samples.length
    measured.tokens += samples.reduce((sum, { promptIds, ids }) => sum + promptIds.length + ids.length, 0)
  }
  return measured
}

export function toSequence({ response }: Turn): Sequence {
  const [choice] = response?.choices ?? []
  return {
    promptIds: Array.from(response?.promptIds ?? []),
    ids: Array.from(choice?.ids ?? []),
    logprobs: Array.from(choice?.logprobs ?? []),
  }
}

/** Whether a prompt starts with the prompt and the sampled tokens of a sequence, and is longer. */
export function extendsLiterally({ promptIds, ids }: Sequence, next: readonly number[]): boolean {
  const count = promptIds.length + ids.length
  return count > 0 && next.length > count && isPrefix(promptIds, ids, next)
}

function isPrefix(promptIds: readonly number[], ids: readonly number[], next: readonly number[]): boolean {
  return promptIds.every((id, i) => id === next[i]) && ids.every((id, i) => id === next[promptIds.length + i])
}

/** The sequences that no later prompt extends. */
export function longestSequences(sequences: readonly Sequence[]): Sequence[] {
  return sequences.filter(
    (sequence, i) => !sequences.slice(i + 1).some(({ promptIds }) => extendsLiterally(sequence, promptIds)),
  )
}

/** Returns the log probability of every token of a sequence by the engine's own model; undefined for the first token. */
export type Score = (ids: readonly number[]) => Promise<readonly (number | undefined)[]>

/** Compares reported log probabilities with those of teacher forcing. Tokens without a score are not compared. */
export async function compareWithScores(
  sequences: readonly Sequence[],
  score: Score,
): Promise<{ tokens: number; largestError: number }> {
  let tokens = 0
  let largest = 0
  for (const longest of longestSequences(sequences)) {
    const scored = await score([...longest.promptIds, ...longest.ids])
    for (const sequence of sequences) {
      if (sequence !== longest && !extendsLiterally(sequence, longest.promptIds)) continue
      for (const [i, logprob] of sequence.logprobs.entries()) {
        const expected = scored[sequence.promptIds.length + i]
        if (expected === undefined) continue
        tokens += 1
        largest = Math.max(largest, Math.abs(expected - logprob))
      }
    }
  }
  return { tokens, largestError: largest }
}
