/**
 * Whether a node may be called so. In a pattern `*` stands for any characters, or none; all else for itself, and nothing
 * may stand before or after. Linear in both, so that no name can make it slow.
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

/** Whether a token may speak for a node; one without patterns may for any. */
export function speaksFor(patterns: readonly string[] | undefined, nodeId: string): boolean {
  return patterns === undefined || patterns.some((pattern) => matchesNode(pattern, nodeId))
}
