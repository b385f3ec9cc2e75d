import { createHash } from 'node:crypto'
import type { Sample } from '../model/sample.ts'

/**
 * Returns the log probabilities of the response for trainers that require a number for every token: 0 where the mask is 0, as
 * slime, verl and TRL write there and never read. Undefined if a trained token has no log probability, because the trainer
 * would use an invented number.
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
 * Returns the weight versions of the trained tokens in token order, one entry per change, without unknown versions. An
 * uncertain version is the oldest possible one, so that a trainer that drops old tokens never keeps one by mistake.
 */
export function weightVersionsOf(sample: Sample): string[] {
  const versions: string[] = []
  for (const { provenance, from, weightVersion } of sample.spans()) {
    if (provenance !== 'sampled' || weightVersion === undefined || sample.mask[from] === 0) continue
    if (versions.at(-1) !== weightVersion) versions.push(weightVersion)
  }
  return versions
}

/** Returns the oldest possible version for trainers that count versions; undefined if one is unknown or not a number. */
export function oldestVersion(sample: Sample): number | undefined {
  const spans = sample.spans().filter(({ from, provenance }) => provenance === 'sampled' && sample.mask[from] === 1)
  const versions = spans.map(({ weightVersion }) => toCount(weightVersion))
  return versions.includes(undefined) ? undefined : Math.min(...(versions as number[]))
}

/** Returns the number of a group for trainers that number groups: its name if that is a number, else a hash of it. */
export function groupNumber(group: string): number {
  return toCount(group) ?? createHash('sha256').update(group).digest().readUIntBE(0, 6)
}

function toCount(text: string | undefined): number | undefined {
  return text !== undefined && /^(0|[1-9]\d{0,14})$/.test(text) ? Number(text) : undefined
}
