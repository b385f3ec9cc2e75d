type Tree = { readonly [key: string]: unknown }

/** Merges objects recursively. Other values, including arrays, are replaced by the later value. */
export function mergeTrees(earlier: Tree, later: Tree): Record<string, unknown> {
  const merged: Record<string, unknown> = { ...earlier }
  for (const [key, value] of Object.entries(later)) {
    const before = merged[key]
    merged[key] = isTree(before) && isTree(value) ? mergeTrees(before, value) : value
  }
  return merged
}

export function isTree(value: unknown): value is Tree {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
