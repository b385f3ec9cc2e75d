/** Gives each heading of one file its anchor, as GitHub does. */
export function createAnchors() {
  const taken = new Map()
  return (text) => {
    const base = text
      .toLowerCase()
      .replace(/[^\p{L}\p{M}\p{N}\p{Pc}\- ]/gu, '')
      .replaceAll(' ', '-')
    let anchor = base
    while (taken.has(anchor)) {
      const count = taken.get(base) + 1
      taken.set(base, count)
      anchor = `${base}-${count}`
    }
    taken.set(anchor, 0)
    return anchor
  }
}
