import * as z from 'zod'
import { Config } from './config.ts'

/** The part of JSON Schema that the config schema uses. */
export interface ConfigSchema {
  type?: string
  format?: string
  description?: string
  default?: unknown
  enum?: readonly unknown[]
  pattern?: string
  minimum?: number
  maximum?: number
  properties?: Readonly<Record<string, ConfigSchema>>
  required?: readonly string[]
  additionalProperties?: boolean | ConfigSchema
  items?: ConfigSchema
  prefixItems?: readonly ConfigSchema[]
  anyOf?: readonly ConfigSchema[]
  /** Not part of JSON Schema: the value may contain a password. */
  isSensitive?: boolean
}

/** A leaf of the config file. */
export interface Field {
  /** Keys joined by dots: `server.port`. */
  path: string
  schema: ConfigSchema
}

/** JSON Schema of the file's contents, before defaults apply. The conversion runs once per process. */
export function toJsonSchema(): ConfigSchema {
  return (converted ??= z.toJSONSchema(Config, { io: 'input' }) as ConfigSchema)
}

let converted: ConfigSchema | undefined

/** Lists all fields in the order of the schema. A list, or a map with free keys, is one field. */
export function listFields(schema: ConfigSchema = toJsonSchema(), prefix = ''): Field[] {
  return Object.entries(schema.properties ?? {}).flatMap(([key, inner]) => {
    const path = prefix === '' ? key : `${prefix}.${key}`
    return inner.properties === undefined ? [{ path, schema: inner }] : listFields(inner, path)
  })
}

/** Returns the schema of the value at a path, including list items and map entries; undefined for an unknown path. */
export function schemaAt(schema: ConfigSchema, path: readonly PropertyKey[]): ConfigSchema | undefined {
  let found: ConfigSchema | undefined = schema
  for (const key of path) {
    if (found === undefined) return undefined
    if (typeof key === 'number') found = found.items
    else if (found.properties !== undefined) found = found.properties[String(key)]
    else found = typeof found.additionalProperties === 'object' ? found.additionalProperties : undefined
  }
  return found
}
