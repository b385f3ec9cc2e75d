/** A log probability as llama.cpp lists it. */
export interface ListedLogprob {
  id: number
  /** Absent when it has none, as for what cannot be said in JSON. */
  logprob?: number | null
}

/**
 * Gives every sampled id its log probability, NaN where there is none. llama.cpp leaves out tokens that end in the middle
 * of a character, and the last ones before a stop string, so what it lists is some of the ids, in order. Where the list
 * fits in more than one way, nobody can say which token a number belongs to, and none gets it.
 */
export function alignLogprobs(ids: readonly number[], listed: readonly ListedLogprob[]): Float32Array {
  const aligned = new Float32Array(ids.length).fill(Number.NaN)
  const earliest = fitFrom(ids, listed, 1)
  const latest = fitFrom(ids, listed, -1)
  if (earliest === undefined || latest === undefined) return aligned
  for (const [i, place] of earliest.entries()) {
    if (place === latest[i]) aligned[place] = toNumber(listed[i]?.logprob)
  }
  return aligned
}

/** What has no probability at all is listed with the least float there is. */
function toNumber(logprob: number | null | undefined): number {
  return logprob == null || logprob <= -9999 ? Number.NaN : logprob
}

/** The place of each entry when all stand as early as can be (or as late, walking back); undefined when they do not fit. */
function fitFrom(ids: readonly number[], listed: readonly ListedLogprob[], step: 1 | -1): number[] | undefined {
  const places = Array.from({ length: listed.length }, () => 0)
  let at = step === 1 ? 0 : ids.length - 1
  for (let i = step === 1 ? 0 : listed.length - 1; i >= 0 && i < listed.length; i += step) {
    while (at >= 0 && at < ids.length && ids[at] !== listed[i]?.id) at += step
    if (at < 0 || at >= ids.length) return undefined
    places[i] = at
    at += step
  }
  return places
}
