/**
 * Whether the whole node id matches the pattern. `*` matches any characters, also none; all other characters match
 * themselves. Runs in linear time, so that no node id can make it slow.
 */
export function matchesNode(pattern: string, nodeId: string): boolean {
  const [first = '', ...rest] = pattern.split('*')
  const last = rest.pop()
  if (last === undefined) return nodeId === pattern
  if (!nodeId.startsWith(first)) return false
  let at = first.length
  for (const piece of rest) {
    const found = nodeId.indexOf(piece, at)
    if (found === -1) return false
    at = found + piece.length
  }
  return nodeId.length - last.length >= at && nodeId.endsWith(last)
}

/** Whether a token may act for a node; a token without patterns may act for any. */
export function mayActFor(patterns: readonly string[] | undefined, nodeId: string): boolean {
  return patterns === undefined || patterns.some((pattern) => matchesNode(pattern, nodeId))
}
