import type * as z from 'zod'

export interface Loosened {
  value: unknown
  /** One for each change, with the path of the field. */
  warnings: string[]
}

/** A fix may reveal further problems; a value that needs more rounds is left to the schema to reject. */
const MAX_ROUNDS = 8
const MAX_WARNINGS = 20

/**
 * Converts input that FastAPI accepts and a strict schema rejects: removes unknown fields, treats null as absent, and converts
 * numbers and booleans written as text. Each change except null adds a warning. Other problems are left for the schema to
 * reject.
 */
export function loosen(schema: z.ZodType, input: unknown): Loosened {
  const warnings = new Warnings()
  let value = input
  for (let round = 0; round < MAX_ROUNDS; round += 1) {
    const parsed = schema.safeParse(value, { reportInput: true })
    if (parsed.success) break
    if (round === 0) value = structuredClone(input)
    const fixed = parsed.error.issues.map((issue) => fix(value, issue, warnings))
    if (!fixed.includes(true)) break
  }
  return { value, warnings: warnings.toList() }
}

/** Keeps the first warnings and the number of the rest: a hostile body may have a million unknown fields. */
class Warnings {
  readonly #first: string[] = []
  #more = 0

  add(toText: () => string): void {
    if (this.#first.length < MAX_WARNINGS) this.#first.push(toText())
    else this.#more += 1
  }

  toList(): string[] {
    return this.#more === 0 ? this.#first : [...this.#first, `and ${this.#more} more`]
  }
}

type Holder = Record<PropertyKey, unknown>

/** Whether the value was changed. */
function fix(root: unknown, issue: z.core.$ZodIssue, warnings: Warnings): boolean {
  if (issue.code === 'unrecognized_keys') {
    const holder = valueAt(root, issue.path) as Holder
    for (const key of issue.keys) {
      if (holder[key] !== null) warnings.add(() => `${nameOf([...issue.path, key])}: unknown field, ignored`)
      delete holder[key]
    }
    return true
  }
  const key = issue.path.at(-1)
  if (issue.code !== 'invalid_type' || key === undefined) return false
  const holder = valueAt(root, issue.path.slice(0, -1)) as Holder
  if (issue.input === null && !Array.isArray(holder)) return delete holder[key]
  const value = toType(issue.expected, issue.input)
  if (value === undefined) return false
  holder[key] = value
  warnings.add(() => `${nameOf(issue.path)}: ${shown(issue.input)} was read as ${String(value)}`)
  return true
}

/** A hostile body may contain a number with millions of digits. */
const SHOWN_CHARACTERS = 100

function shown(input: unknown): string {
  return JSON.stringify(input).slice(0, SHOWN_CHARACTERS)
}

function valueAt(root: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce((value, key) => (value as Holder)[key], root)
}

function nameOf(path: readonly PropertyKey[]): string {
  return ['body', ...path].map(String).join('.')
}

/** Accepts the same texts as pydantic. Undefined: not convertible. */
function toType(expected: string, input: unknown): number | boolean | undefined {
  if (expected === 'boolean') {
    if (input === 1 || (typeof input === 'string' && /^(?:true|1|yes|on|t|y)$/i.test(input))) return true
    if (input === 0 || (typeof input === 'string' && /^(?:false|0|no|off|f|n)$/i.test(input))) return false
  }
  const isNumber = expected === 'number' || expected === 'int'
  if (isNumber && typeof input === 'string' && /^\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?\s*$/i.test(input)) {
    return Number(input)
  }
  return undefined
}
