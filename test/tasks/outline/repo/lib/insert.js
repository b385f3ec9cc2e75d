const START = '<!-- toc -->'
const END = '<!-- /toc -->'

/** The text with its outline renewed; undefined when the markers are not there. */
export function insertOutline(text, outline) {
  const start = text.indexOf(START)
  const end = text.indexOf(END, start)
  if (start === -1 || end === -1) return undefined
  return `${text.slice(0, start + START.length)}\n\n${outline}\n${text.slice(end)}`
}
