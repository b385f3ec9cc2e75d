import * as z from 'zod'

/** Issues that `arrayOf` and `recordOf` report before they stop. */
const MAX_ISSUES = 1000

/**
 * Like `z.array(schema)`, but reports the first wrong element only. `z.array` collects an issue for every wrong element,
 * so a body of a few megabytes from a hostile client costs seconds and gigabytes. The JSON schema is that of `z.array`.
 */
export function listOf<T extends z.ZodType>(schema: T, { min = 0 }: { min?: number } = {}): z.ZodArray<T> {
  const list = toList(schema, 1)
  return min === 0 ? list : list.min(min)
}

/** Like `z.array(schema)`, but stops after `MAX_ISSUES` issues: for bodies whose problems are all reported. */
export function arrayOf<T extends z.ZodType>(schema: T): z.ZodArray<T> {
  return toList(schema, MAX_ISSUES)
}

/** Like `z.record(z.string(), schema)`, but stops after `MAX_ISSUES` issues. */
export function recordOf<T extends z.ZodType>(schema: T): z.ZodRecord<z.ZodString, T> {
  const def = { type: 'record', keyType: z.string(), valueType: schema }
  return new BoundedRecord(def as never) as unknown as z.ZodRecord<z.ZodString, T>
}

function toList<T extends z.ZodType>(element: T, mostIssues: number): z.ZodArray<T> {
  return new BoundedArray({ type: 'array', element, mostIssues } as never) as unknown as z.ZodArray<T>
}

interface BoundedDef extends z.core.$ZodArrayDef {
  mostIssues: number
}

/** Without the assertion that its type has, for which TypeScript wants a name of its own. */
function init(constructor: object, schema: unknown, def: unknown): void {
  const { init: initialize } = constructor as { init: (this: void, schema: unknown, def: unknown) => void }
  initialize(schema, def)
}

/** A constructor and not a changed instance: `min`, `max` and `describe` create the schema anew from its definition. */
const BoundedArray = z.core.$constructor<z.ZodArray, BoundedDef>('BoundedArray', (schema, def) => {
  init(z.ZodArray, schema, def)
  const parseWhole = schema._zod.parse.bind(schema._zod)
  const longest = Math.min(...(def.checks ?? []).map((check) => maximumOf(check) ?? Number.POSITIVE_INFINITY))
  schema._zod.parse = (payload, context) => {
    const input: unknown = payload.value
    // The elements of an array that is too long are not checked.
    if (!Array.isArray(input) || input.length > longest) return parseWhole(payload, context)
    const output: unknown[] = []
    payload.value = output as never
    for (let index = 0; index < input.length; index += 1) {
      const result = run(def.element, input[index], context)
      output.push(result.value)
      if (result.issues.length === 0) continue
      payload.issues.push(...z.core.util.prefixIssues(index, result.issues))
      if (payload.issues.length >= def.mostIssues) break
    }
    return payload
  }
})

const BoundedRecord = z.core.$constructor<z.ZodRecord, z.core.$ZodRecordDef>('BoundedRecord', (schema, def) => {
  init(z.ZodRecord, schema, def)
  const parseWhole = schema._zod.parse.bind(schema._zod)
  schema._zod.parse = (payload, context) => {
    const input: unknown = payload.value
    if (!z.core.util.isPlainObject(input)) return parseWhole(payload, context)
    const output: Record<string, unknown> = {}
    payload.value = output as never
    for (const key of Object.keys(input)) {
      if (key === '__proto__') continue
      const result = run(def.valueType, (input as Record<string, unknown>)[key], context)
      output[key] = result.value
      if (result.issues.length === 0) continue
      payload.issues.push(...z.core.util.prefixIssues(key, result.issues))
      if (payload.issues.length >= MAX_ISSUES) break
    }
    return payload
  }
})

function maximumOf(check: z.core.$ZodCheck): number | undefined {
  return (check._zod.def as { maximum?: number }).maximum
}

function run(schema: z.core.SomeType, value: unknown, context: z.core.ParseContextInternal): z.core.ParsePayload {
  const result = schema._zod.run({ value, issues: [] }, context)
  if (result instanceof Promise) throw new z.core.$ZodAsyncError()
  return result
}
