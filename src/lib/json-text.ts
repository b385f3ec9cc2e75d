/** Whether a text is JSON. */
export function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/**
 * Equal for texts that are the same JSON but for white space, key order and how numbers and escapes are written; undefined
 * for what is no JSON.
 */
export function sortedJson(text: string): string | undefined {
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
