const ATX = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/

/** The headings of a Markdown text, in order: `{ level, text }`. */
export function findHeadings(text) {
  const headings = []
  let previous = ''
  for (const line of text.split(/\r?\n/)) {
    const atx = ATX.exec(line)
    const underline = UNDERLINE.exec(line)
    if (atx) headings.push({ level: atx[1].length, text: plainText(atx[2] ?? '') })
    else if (underline && isParagraph(previous)) {
      headings.push({ level: underline[1][0] === '=' ? 1 : 2, text: plainText(previous.trim()) })
    }
    previous = atx ? '' : line
  }
  return headings
}

/** Whether a line can be a heading when it is underlined. */
function isParagraph(line) {
  return line.trim() !== '' && !/^ {4}|^ {0,3}(?:[-*+>]|\d+[.)])[ \t]|^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/.test(line)
}

/** Without the marks of links, images, emphasis and code. */
function plainText(text) {
  return text
    .replace(/!\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replace(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .replace(/(\*\*|__|\*|_)(?=\S)(.*?\S)\1/g, '$2')
    .replace(/`([^`]*)`/g, '$1')
}
