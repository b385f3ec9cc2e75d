/** A text as one word of a POSIX shell's. */
export function shellWord(text: string): string {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`
}
