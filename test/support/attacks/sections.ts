/** Returns the lines between the line `@@ name` and the next line that begins with `@@ `; empty if there are none. */
export function sectionOf(text: string, name: string): string {
  const lines = text.split('\n')
  const begin = lines.indexOf(`@@ ${name}`)
  if (begin === -1) return ''
  const end = lines.findIndex((line, index) => index > begin && line.startsWith('@@ '))
  return lines
    .slice(begin + 1, end === -1 ? undefined : end)
    .join('\n')
    .trim()
}
