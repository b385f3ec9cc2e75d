/** Returns the leading numbers of a version: 0.28.0 for `0.28.0rc2`, 0.5.17 for `v0.5.17.post1`. Undefined if there are none. */
export function parseVersion(text: string): number[] | undefined {
  const numbers = /^v?(\d+(?:\.\d+)*)/.exec(text.trim())?.[1]
  return numbers?.split('.').map(Number)
}

/** Whether a version is `least` or newer. Missing numbers count as zero. False for text that is not a version. */
export function isAtLeast(version: string, least: string): boolean {
  const own = parseVersion(version)
  const other = parseVersion(least)
  if (own === undefined || other === undefined) return false
  for (let i = 0; i < Math.max(own.length, other.length); i++) {
    const difference = (own[i] ?? 0) - (other[i] ?? 0)
    if (difference !== 0) return difference > 0
  }
  return true
}
