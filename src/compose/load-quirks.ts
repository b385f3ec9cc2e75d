import { readFile } from 'node:fs/promises'
import { parseDocument } from 'yaml'
import * as z from 'zod'
import { orInvalid } from '../config/or-invalid.ts'
import { QuirkRule } from '../gateway/quirks/rule.ts'
import { RolloutError } from '../model/failure.ts'

/** Loads the rules of files separated by commas, in order. Throws `config.invalid`. */
export async function loadQuirks(files: string | undefined): Promise<QuirkRule[]> {
  const names = (files ?? '').split(',').filter((name) => name.trim() !== '')
  const rules = (await Promise.all(names.map((name) => loadFile(name.trim())))).flat()
  const duplicate = rules.find(({ name }, i) => rules.findIndex((rule) => rule.name === name) !== i)
  if (duplicate === undefined) return rules
  throw new RolloutError(
    'config.invalid',
    `Two quirk rules have the name "${duplicate.name}". Names must be unique, because calls record them.`,
  )
}

function loadFile(path: string): Promise<QuirkRule[]> {
  return orInvalid(`The quirk rules ${path} cannot be used`, async () => parseRules(await readFile(path, 'utf8')))
}

/** Parses YAML or JSON: one rule, or a list of rules. Throws an Error with all problems and their paths. */
export function parseRules(text: string): QuirkRule[] {
  const document = parseDocument(text)
  const [problem] = document.errors
  if (problem) throw new Error(problem.message)
  const value = document.toJS({ maxAliasCount: 100 }) as unknown
  const parsed = z.array(QuirkRule).safeParse(Array.isArray(value) ? value : [value])
  if (parsed.success) return parsed.data
  throw new Error(parsed.error.issues.map(({ path, message }) => `\n  ${path.join('.')}: ${message}`).join(''))
}
