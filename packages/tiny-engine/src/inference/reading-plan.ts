/**
 * Divides a prompt into pieces for reading. The model quantises the activations of each piece by one scale, so the precision
 * of a piece depends on its largest value, and the cuts affect the result.
 *
 * The first tokens of a prompt have activations far above all others (every later token attends to them) and would reduce
 * the precision of their piece; the last tokens determine the answer. Both are read one by one, like sampled tokens. With
 * pieces of 128 throughout, "The capital of France is Paris." became noise. The distance of the next-token distribution from
 * reading one by one fell from 0.5-9 nats to 0.01-0.3, at 20% more time.
 */
const HEAD_TOKENS = 8
const PIECE_TOKENS = 32
const TAIL_TOKENS = 16

/**
 * Cached chunks begin and end at multiples of this. Up to there the cuts do not depend on later tokens, so a prompt gives
 * identical numbers whether or not its start was cached.
 */
export const CHUNK_TOKENS = 128

/** Returns the number of tokens to read next, for a prompt of `length` tokens of which `at` are read. */
export function nextPiece(at: number, length: number): number {
  const tail = length - TAIL_TOKENS
  if (at < HEAD_TOKENS || at >= tail) return 1
  return Math.min(PIECE_TOKENS - (at % PIECE_TOKENS), tail - at)
}

/** Returns the number of leading chunks that are read as in any longer prompt. */
export function sharedChunks(length: number): number {
  return Math.max(0, Math.floor((length - TAIL_TOKENS) / CHUNK_TOKENS))
}
