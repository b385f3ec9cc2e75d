import { toLogprob } from './wire/to-logprob.ts'

/** An entry of llama.cpp's list of log probabilities. */
export interface ListedLogprob {
  id: number
  /** Absent for a value that JSON cannot represent. */
  logprob?: number | null
}

/**
 * Returns the log probability of every sampled id, NaN where there is none. llama.cpp omits tokens that end within a
 * character and the last tokens before a stop string, so the list is a subsequence of the ids. An entry that could belong
 * to more than one id is not assigned.
 */
export function alignLogprobs(ids: readonly number[], listed: readonly ListedLogprob[]): Float32Array {
  const aligned = new Float32Array(ids.length).fill(Number.NaN)
  const earliest = fitFrom(ids, listed, 1)
  const latest = fitFrom(ids, listed, -1)
  if (earliest === undefined || latest === undefined) return aligned
  for (const [i, index] of earliest.entries()) {
    if (index === latest[i]) aligned[index] = toLogprob(listed[i]?.logprob)
  }
  return aligned
}

/** Returns the earliest (`step` 1) or latest (-1) possible index of each entry; undefined when the list does not match. */
function fitFrom(ids: readonly number[], listed: readonly ListedLogprob[], step: 1 | -1): number[] | undefined {
  const indexes = Array.from({ length: listed.length }, () => 0)
  let at = step === 1 ? 0 : ids.length - 1
  for (let i = step === 1 ? 0 : listed.length - 1; i >= 0 && i < listed.length; i += step) {
    while (at >= 0 && at < ids.length && ids[at] !== listed[i]?.id) at += step
    if (at < 0 || at >= ids.length) return undefined
    indexes[i] = at
    at += step
  }
  return indexes
}
