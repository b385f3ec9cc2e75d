import { readFileSync } from 'node:fs'

/**
 * Returns a function that returns the text of a program in another language: a file beside the module that uses it, named as
 * `new URL('./x.pl', import.meta.url)`. The file is read at the first call. The comment lines at its beginning are left out,
 * because command lines are limited.
 */
export function loadProgram(file: URL): () => string {
  let text: string | undefined
  return () => (text ??= readFileSync(file, 'utf8').replace(/^(?:(?:#|\/\/).*\n)+/, ''))
}
