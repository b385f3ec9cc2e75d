/** Returns the leading numbers of a version; undefined if there are none: `v0.5.17.post1` is 0.5.17. */
export function parseVersion(text: string): number[] | undefined {
  return /^v?(\d+(?:\.\d+)*)/.exec(text.trim())?.[1]?.split('.').map(Number)
}

/** Whether `version` is `least` or newer. Missing numbers count as zero. */
export function isAtLeast(version: string, least: string): boolean {
  const own = parseVersion(version)
  const wanted = parseVersion(least)
  if (own === undefined || wanted === undefined) return false
  const at = [...own, ...wanted].findIndex((_, i) => (own[i] ?? 0) !== (wanted[i] ?? 0))
  return at === -1 || (own[at] ?? 0) > (wanted[at] ?? 0)
}
