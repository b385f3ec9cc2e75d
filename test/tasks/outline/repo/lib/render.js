import { createAnchors } from './anchors.js'

/** A nested list of links. The first level that occurs is not indented. */
export function renderOutline(headings, depth = 6) {
  const anchorOf = createAnchors()
  const all = headings.map((heading) => ({ ...heading, anchor: anchorOf(heading.text) }))
  const shown = all.filter((heading) => heading.level <= depth)
  const top = Math.min(...shown.map((heading) => heading.level))
  return shown.map(({ level, text, anchor }) => `${'  '.repeat(level - top)}- [${text}](#${anchor})\n`).join('')
}
