/**
 * In which pieces a prompt is read. The model quantises the activations of each piece by one scale, so a piece is as
 * coarse as its largest value, and where the cuts fall is part of the result.
 *
 * The first tokens of a prompt carry activations far above all others (every later token attends to them) and would
 * drown whatever shares their piece; and from the last ones the answer is drawn. Both are read one by one, as sampled
 * tokens are. Read in pieces of 128 throughout, "The capital of France is Paris." came out as noise; the distance of the
 * next-token distribution from that of reading one by one fell from 0.5-9 nats to 0.01-0.3, at a fifth more time.
 */
const HEAD_TOKENS = 8
const PIECE_TOKENS = 32
const TAIL_TOKENS = 16

/**
 * What can be cached begins and ends at multiples of this. Up to there the cuts do not depend on what follows, so a
 * prompt gives the same numbers to the last bit whether its beginning was cached or not.
 */
export const CHUNK_TOKENS = 128

/** How many tokens to read next, of a prompt of `length` of which `at` have been read. */
export function nextPiece(at: number, length: number): number {
  const tail = length - TAIL_TOKENS
  if (at < HEAD_TOKENS || at >= tail) return 1
  return Math.min(PIECE_TOKENS - (at % PIECE_TOKENS), tail - at)
}

/** How many whole chunks of a prompt of `length` are read as they would be in any longer prompt. */
export function sharedChunks(length: number): number {
  return Math.max(0, Math.floor((length - TAIL_TOKENS) / CHUNK_TOKENS))
}
