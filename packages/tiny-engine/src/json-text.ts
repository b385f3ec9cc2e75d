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
 * Whether a JSON text nests objects and arrays deeper than `limit`. Call it before parsing, which costs memory per
 * level.
 */
export function nestsDeeperThan(text: string, limit: number): boolean {
  let depth = 0
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[{]|[\]}]/gs)) {
    if (token === '[' || token === '{') depth++
    else if (token === ']' || token === '}') depth--
    if (depth > limit) return true
  }
  return false
}
