import { holdsMoreValuesThan, nestsDeeperThan } from './json-depth.ts'

/** Returns undefined for text that is not JSON. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Returns undefined for text that is not a JSON object. */
export function parseJsonObject(text: string): Record<string, unknown> | undefined {
  const value = parseJson(text)
  return isRecord(value) ? value : undefined
}

/** Whether a text is JSON. */
export function isJson(text: string): boolean {
  return parseJson(text) !== undefined
}

/** Shorter texts cost little, whatever they hold. */
const SHORT = 64 * 1024
const DEEPEST = 128
const MOST_VALUES = 100_000

/** A hostile harness sends tool arguments of megabytes; the parser takes about 80 bytes and 250 ns for each level. */
function isCostly(text: string): boolean {
  if (text.length <= SHORT) return false
  const bytes = Buffer.from(text)
  return nestsDeeperThan(bytes, DEEPEST) || holdsMoreValuesThan(bytes, MOST_VALUES)
}

/**
 * Equal for texts that are the same JSON but for white space, key order and how numbers and escapes are written; undefined
 * for what is no JSON, and for what would cost much to read.
 */
export function sortedJson(text: string): string | undefined {
  if (isCostly(text)) return undefined
  try {
    return JSON.stringify(sortKeys(JSON.parse(text)))
  } catch {
    return undefined
  }
}

function sortKeys(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sortKeys)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, child]) => [key, sortKeys(child)]),
  )
}
