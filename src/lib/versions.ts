/** The leading numbers of a version; undefined when it has none. `0.28.0rc2` is 0.28.0 here, `v0.5.17.post1` is 0.5.17. */
export function parseVersion(text: string): number[] | undefined {
  const numbers = /^v?(\d+(?:\.\d+)*)/.exec(text.trim())?.[1]
  return numbers?.split('.').map(Number)
}

/** Whether a version is `least` or newer. Missing numbers count as zero; one that cannot be read is not. */
export function isAtLeast(version: string, least: string): boolean {
  const own = parseVersion(version)
  const wanted = parseVersion(least)
  if (own === undefined || wanted === undefined) return false
  for (let i = 0; i < Math.max(own.length, wanted.length); i++) {
    const difference = (own[i] ?? 0) - (wanted[i] ?? 0)
    if (difference !== 0) return difference > 0
  }
  return true
}
