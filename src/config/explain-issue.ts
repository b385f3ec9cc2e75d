import type * as z from 'zod'
import { redactUrls } from './redact.ts'
import { type ConfigSchema, schemaAt } from './list-fields.ts'

type Issue = z.core.$ZodIssue

/** Describes an issue of the schema, with its path. Each unknown key is a problem of its own. */
export function explainIssue(
  issue: Issue,
  valueAt: (path: readonly PropertyKey[]) => unknown,
  schema: ConfigSchema,
): { path: PropertyKey[]; problem: string }[] {
  const { path } = issue
  if (issue.code === 'unrecognized_keys') {
    const known = Object.keys(schemaAt(schema, path)?.properties ?? {})
    return issue.keys.map((key) => ({ path: [...path, key], problem: explainKey(key, known) }))
  }
  const about = schemaAt(schema, path)
  const value = valueAt(path)
  const isNamed = issue.code === 'custom' || about?.isSensitive
  const actual = value === undefined ? ', but is missing' : isNamed ? '' : `, not ${show(value)}`
  return [{ path, problem: `${expectation(issue, about)}${actual}` }]
}

function expectation(issue: Issue, about: ConfigSchema | undefined): string {
  switch (issue.code) {
    case 'invalid_type':
      return about?.type === 'integer'
        ? `must be ${range(about)}`
        : `must be ${NOUNS[issue.expected] ?? issue.expected}`
    case 'invalid_value':
      return `must be ${issue.values.length === 1 ? '' : 'one of '}${issue.values.map(String).join(', ')}`
    case 'too_small':
    case 'too_big':
      return about?.type === 'integer' || about?.type === 'number' ? `must be ${range(about)}` : sizeOf(issue)
    case 'invalid_union':
    case 'invalid_format':
    case 'custom':
    case 'not_multiple_of':
    case 'invalid_key':
    case 'invalid_element':
      return ownWords(issue.message)
    case 'unrecognized_keys':
      return 'has unknown keys'
  }
}

function sizeOf(issue: Extract<Issue, { code: 'too_small' | 'too_big' }>): string {
  const size = issue.code === 'too_small' ? `at least ${issue.minimum}` : `at most ${issue.maximum}`
  return issue.origin === 'string' && issue.code === 'too_small' && Number(issue.minimum) === 1
    ? 'must not be empty'
    : `must have ${size} ${issue.origin === 'string' ? 'characters' : 'entries'}`
}

/** Messages of our schemas are phrases that begin with a verb; messages of zod are not. */
function ownWords(message: string): string {
  return /^(?:must|takes|needs)/.test(message) ? message : `is not valid (${message.toLowerCase()})`
}

function range({ type, minimum, maximum }: ConfigSchema): string {
  const noun = type === 'integer' ? 'a whole number' : 'a number'
  const least = minimum === undefined || minimum === Number.MIN_SAFE_INTEGER ? undefined : minimum
  const most = maximum === undefined || maximum === Number.MAX_SAFE_INTEGER ? undefined : maximum
  if (least !== undefined && most !== undefined) return `${noun} from ${least} to ${most}`
  if (least !== undefined) return `${noun} of at least ${least}`
  return most === undefined ? `${noun} above 0` : `${noun} of at most ${most}`
}

const NOUNS: Readonly<Record<string, string>> = {
  number: 'a number',
  int: 'a whole number',
  string: 'text (put quotes around it)',
  boolean: 'true or false',
  array: 'a list',
  object: 'a section with keys of its own',
  record: 'a section with keys of its own',
}

/** For a secret in the file, names the keys to use instead, and does not print the secret. */
function explainKey(key: string, known: readonly string[]): string {
  if (known.includes(`${key}_env`))
    return `unknown key; the file must not contain secrets: use ${key}_file or ${key}_env`
  const near = nearest(key, known)
  if (near !== undefined) return `unknown key; did you mean "${near}"?`
  return known.length === 0 ? 'unknown key' : `unknown key; known keys: ${known.join(', ')}`
}

function show(value: unknown): string {
  const text = JSON.stringify(value) ?? String(value)
  if (Array.isArray(value)) return 'a list'
  if (typeof value === 'object') return 'a section'
  return redactUrls(text.length > 60 ? `${text.slice(0, 57)}…"` : text)
}

/** Returns the known word with the smallest edit distance, if it is small. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const plain = (text: string): string => text.toLowerCase().replaceAll(/[^a-z0-9]/g, '')
  const scored = known.map((candidate) => ({ candidate, distance: editDistance(plain(word), plain(candidate)) }))
  const [best] = scored.sort((a, b) => a.distance - b.distance)
  return best !== undefined && best.distance <= Math.max(1, Math.floor(word.length / 3)) ? best.candidate : undefined
}

/** Edit distance with transpositions of adjacent letters. */
function editDistance(a: string, b: string): number {
  let before: number[] = []
  let row = Array.from({ length: b.length + 1 }, (_, j) => j)
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const isSame = a[i - 1] === b[j - 1]
      let distance = Math.min(row[j]! + 1, next[j - 1]! + 1, row[j - 1]! + (isSame ? 0 : 1))
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        distance = Math.min(distance, before[j - 2]! + 1)
      next.push(distance)
    }
    before = row
    row = next
  }
  return row[b.length]!
}
