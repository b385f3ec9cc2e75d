import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const page = fileURLToPath(new URL('../../docs/export.md', import.meta.url))

/** A Python block of docs/export.md whose first line is the `polar export` command that writes the file it reads. */
export interface Recipe {
  /** Arguments of the command, after `export`. */
  command: string[]
  code: string
}

/** The recipes of docs/export.md by format. */
export function loadRecipes(): Map<string, Recipe> {
  const recipes = new Map<string, Recipe>()
  for (const [, code = ''] of readFileSync(page, 'utf8').matchAll(/^```python\n(.*?)^```/gms)) {
    const [, line] = /^# polar export (.+)\n/.exec(code) ?? []
    if (line === undefined) throw new Error(`A Python block of docs/export.md has no export command:\n${code}`)
    const command = line.split(' ')
    const format = command[command.indexOf('--format') + 1] ?? ''
    if (recipes.has(format)) throw new Error(`docs/export.md has two recipes for ${format}`)
    recipes.set(format, { command, code })
  }
  return recipes
}
