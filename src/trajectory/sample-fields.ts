import { createHash } from 'node:crypto'
import type { Sample } from '../model/sample.ts'

/**
 * Log probabilities of the response for trainers that want a number for every token: 0 where the mask is 0, which is what
 * slime, verl and TRL write there themselves and never read. Undefined when a trained token has none: a made-up number
 * there would be trained on.
 */
export function maskedLogprobs({ promptLength, mask, logprobs }: Sample): Float32Array | undefined {
  const values = logprobs.slice(promptLength)
  for (let i = 0; i < values.length; i++) {
    if (mask[promptLength + i] === 0) values[i] = 0
    else if (!Number.isFinite(values[i])) return undefined
  }
  return values
}

/**
 * The weights that sampled the trained tokens, in the order of the tokens, each change named once; unknown ones are left
 * out. Where a version is uncertain, the oldest possible one: a trainer that drops old tokens then never keeps one by mistake.
 */
export function weightVersionsOf(sample: Sample): string[] {
  const versions: string[] = []
  for (const { provenance, from, weightVersion } of sample.spans()) {
    if (provenance !== 'sampled' || weightVersion === undefined || sample.mask[from] === 0) continue
    if (versions.at(-1) !== weightVersion) versions.push(weightVersion)
  }
  return versions
}

/** The oldest possible one of them, for trainers that count versions; undefined when one is unknown or is no number. */
export function oldestVersion(sample: Sample): number | undefined {
  const spans = sample.spans().filter(({ from, provenance }) => provenance === 'sampled' && sample.mask[from] === 1)
  const versions = spans.map(({ weightVersion }) => toCount(weightVersion))
  return versions.includes(undefined) ? undefined : Math.min(...(versions as number[]))
}

/** For trainers that number groups: the number a group's name is, or else one that follows from its name. */
export function groupNumber(group: string): number {
  return toCount(group) ?? createHash('sha256').update(group).digest().readUIntBE(0, 6)
}

function toCount(text: string | undefined): number | undefined {
  return text !== undefined && /^(0|[1-9]\d{0,14})$/.test(text) ? Number(text) : undefined
}
