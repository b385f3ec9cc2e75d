import type * as z from 'zod'

export interface Loosened {
  value: unknown
  /** What was changed, and where. */
  warnings: string[]
}

/** Each round mends all problems of one kind of depth; a value that needs more is refused as it is. */
const MOST_ROUNDS = 8
const MOST_WARNINGS = 20

/**
 * Mends what FastAPI would take and a strict schema refuses: unknown fields are left out, null stands for a field that is
 * absent, numbers and booleans may be written as text. Each change is a warning, but for null. What else is wrong stays,
 * for the schema to refuse.
 */
export function loosen(schema: z.ZodType, input: unknown): Loosened {
  const warnings = new Warnings()
  let value = input
  for (let round = 0; round < MOST_ROUNDS; round += 1) {
    const parsed = schema.safeParse(value, { reportInput: true })
    if (parsed.success) break
    if (round === 0) value = structuredClone(input)
    const mended = parsed.error.issues.map((issue) => mend(value, issue, warnings))
    if (!mended.includes(true)) break
  }
  return { value, warnings: warnings.toList() }
}

/** The first warnings, and the number of the others: a hostile body has a million unknown fields. */
class Warnings {
  readonly #first: string[] = []
  #more = 0

  add(toText: () => string): void {
    if (this.#first.length < MOST_WARNINGS) this.#first.push(toText())
    else this.#more += 1
  }

  toList(): string[] {
    return this.#more === 0 ? this.#first : [...this.#first, `and ${this.#more} more`]
  }
}

type Holder = Record<PropertyKey, unknown>

/** Whether it changed anything. */
function mend(root: unknown, issue: z.core.$ZodIssue, warnings: Warnings): boolean {
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

/** A hostile body may write a number in megabytes. */
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

/** The words that pydantic takes. Undefined: it is not that type. */
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
