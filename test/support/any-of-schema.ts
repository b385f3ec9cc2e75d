import fc from 'fast-check'
import * as z from 'zod'

type Any = fc.Arbitrary<unknown>

interface Definition {
  type: string
  innerType?: z.ZodType
  element?: z.ZodType
  shape?: Readonly<Record<string, z.ZodType>>
  options?: readonly z.ZodType[]
  entries?: Readonly<Record<string, string>>
  values?: readonly unknown[]
  valueType?: z.ZodType
}

type Bounds = z.core.JSONSchema.BaseSchema

/**
 * Draws input values that a schema accepts; optional fields are sometimes absent. `known` has the values of schemas whose
 * rules cannot be inspected, by the schema itself or by the source of its pattern.
 */
export function anyOfSchema(schema: z.ZodType, known: ReadonlyMap<z.ZodType | string, Any>): Any {
  return anyWithin(schema, known).filter((value) => schema.safeParse(value).success)
}

function anyWithin(schema: z.ZodType, known: ReadonlyMap<z.ZodType | string, Any>): Any {
  const standIn = known.get(schema)
  if (standIn !== undefined) return standIn
  const definition = schema.def as unknown as Definition
  const within = (inner: z.ZodType | undefined): Any => anyWithin(inner!, known)
  switch (definition.type) {
    case 'object': {
      const shape = Object.entries(definition.shape ?? {})
      const required = shape.filter(([, field]) => !field.safeParse(undefined).success).map(([name]) => name)
      const fields = shape.map(([name, field]) => [name, withoutAbsent(field, known)] as const)
      return fc.record(Object.fromEntries(fields), { requiredKeys: required, noNullPrototype: true })
    }
    case 'array': {
      const { minItems = 0 } = z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' })
      return fc.array(within(definition.element), { minLength: minItems, maxLength: minItems + 2 })
    }
    case 'string':
      return anyString(z.toJSONSchema(schema), known)
    case 'number':
      return anyNumber(z.toJSONSchema(schema))
    case 'boolean':
      return fc.boolean()
    case 'enum':
      return fc.constantFrom(...Object.values(definition.entries ?? {}))
    case 'literal':
      return fc.constantFrom(...(definition.values ?? []))
    case 'union':
      return fc.oneof(...(definition.options ?? []).map(within))
    case 'nullable':
      return fc.option(within(definition.innerType), { nil: null })
    case 'optional':
    case 'default':
    case 'prefault':
      return within(definition.innerType)
    case 'record':
      return fc.dictionary(fc.stringMatching(/^[a-z]{1,6}$/), within(definition.valueType), { maxKeys: 2 })
    case 'unknown':
      return anyJson
    default:
      throw new Error(`no values are known for a schema of type ${definition.type}`)
  }
}

/** JSON has no minus zero. Tests of malformed input cover the key `__proto__`. */
const anyJson: Any = fc
  .jsonValue({ maxDepth: 2, noUnicodeString: false })
  .map((value) => JSON.parse(JSON.stringify(value).replaceAll('"__proto__"', '"proto"')) as unknown)

function withoutAbsent(field: z.ZodType, known: ReadonlyMap<z.ZodType | string, Any>): Any {
  return anyWithin(field, known).filter((value) => value !== undefined)
}

function anyString(
  { minLength = 0, maxLength = 40, format, pattern }: Bounds,
  known: ReadonlyMap<z.ZodType | string, Any>,
): Any {
  if (format === 'uri') return fc.constantFrom('http://127.0.0.1:9000/callback', 'https://example.org/a?b=c')
  if (format === 'date-time') return fc.constant('2026-06-01T12:00:00Z')
  if (pattern !== undefined) return known.get(pattern) ?? fc.stringMatching(new RegExp(pattern))
  return fc.string({ minLength, maxLength: Math.min(maxLength, 40), unit: 'grapheme' })
}

function anyNumber({ type, minimum, maximum, exclusiveMinimum }: Bounds): Any {
  const max = Math.min(maximum ?? 1e9, 1e9)
  const least = typeof exclusiveMinimum === 'number' ? exclusiveMinimum + 0.001 : (minimum ?? -1e9)
  const min = Math.max(least, -1e9)
  if (type === 'integer') return fc.integer({ min: Math.ceil(min), max })
  return fc.double({ min, max, noNaN: true }).map((value) => (Object.is(value, -0) ? 0 : value))
}
