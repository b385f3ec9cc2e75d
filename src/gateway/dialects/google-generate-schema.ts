import { isRecord } from '../../lib/json/json-text.ts'

/**
 * Converts Google's schema to JSON Schema. Google's schema is that of OpenAPI in the notation of protocol buffers:
 * upper-case types, counts as strings, `nullable`. A JSON Schema is not changed, and keys keep their order, because engines
 * print the schema into the prompt.
 */
export function toJsonSchema(schema: unknown): unknown {
  if (!isRecord(schema)) return schema
  const entries = Object.entries(schema).flatMap(([key, value]) => toKeyword(key, value))
  const result: Record<string, unknown> = Object.fromEntries(entries)
  if (result['nullable'] === true && typeof result['type'] === 'string') {
    delete result['nullable']
    result['type'] = [result['type'], 'null']
  }
  return result
}

function toKeyword(written: string, value: unknown): [string, unknown][] {
  const key = camelCase(written)
  if (key === 'type') return value === 'TYPE_UNSPECIFIED' ? [] : [[key, toType(value)]]
  // The order in which Google's own models write the properties. Other engines do not support it.
  if (key === 'propertyOrdering') return []
  if (COUNTS.has(key)) return [[key, toCount(value)]]
  if (SCHEMAS.has(key)) return [[key, Array.isArray(value) ? value.map(toJsonSchema) : toJsonSchema(value)]]
  if (MAPS.has(key) && isRecord(value)) {
    return [[key, Object.fromEntries(Object.entries(value).map(([name, child]) => [name, toJsonSchema(child)]))]]
  }
  return [[written, value]]
}

const TYPES: ReadonlySet<string> = new Set(['STRING', 'NUMBER', 'INTEGER', 'BOOLEAN', 'ARRAY', 'OBJECT', 'NULL'])

function toType(type: unknown): unknown {
  if (Array.isArray(type)) return type.map(toType)
  return typeof type === 'string' && TYPES.has(type) ? type.toLowerCase() : type
}

/** 64-bit numbers are strings in the JSON of protocol buffers. */
function toCount(value: unknown): unknown {
  return typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value
}

function camelCase(key: string): string {
  return key.replaceAll(/(?<=[a-z])_([a-z])/g, (_, letter: string) => letter.toUpperCase())
}

const COUNTS = wordSet('minItems maxItems minLength maxLength minProperties maxProperties')

/** Keywords whose value is a schema or a list of schemas. */
const SCHEMAS = wordSet(
  'items prefixItems contains additionalItems unevaluatedItems additionalProperties unevaluatedProperties',
  'propertyNames anyOf oneOf allOf not if then else',
)

/** Keywords whose value maps names to schemas. The names are not changed. */
const MAPS = wordSet('properties patternProperties dependentSchemas $defs definitions')

function wordSet(...lines: string[]): ReadonlySet<string> {
  return new Set(lines.flatMap((line) => line.split(' ')))
}
