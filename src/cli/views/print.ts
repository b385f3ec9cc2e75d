import { toVisibleJson, toVisibleText } from '../../lib/visible-text.ts'

/**
 * All text that the CLI prints goes through these functions; only the bars of a terminal (`screen.ts`, `progress.ts`) write to
 * a stream themselves. Text of agents, tasks, engines and servers may be anywhere in it: no control character of theirs
 * reaches the terminal. A view also makes each field of one line visible, so that a field cannot add lines.
 */
export function print(text: string): void {
  process.stdout.write(toVisibleText(text))
}

/** For people, beside the data on standard output. */
export function printError(text: string): void {
  process.stderr.write(toVisibleText(text))
}

/** One value, on one line unless `indent` is given. A parser reads exactly what was given. */
export function printJson(value: unknown, indent?: number, stream: NodeJS.WriteStream = process.stdout): void {
  stream.write(`${toVisibleJson(JSON.stringify(value, null, indent))}\n`)
}

/** Adds a key in snake_case, like those of all other JSON output, beside each camelCase key, which stays until the next release. */
export function withSnakeKeys(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withSnakeKeys)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).flatMap(([key, inner]) => {
    const snake = key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
    const converted = withSnakeKeys(inner)
    return [[key, converted], ...(snake === key ? [] : [[snake, converted]])]
  })
  return Object.fromEntries(entries)
}
