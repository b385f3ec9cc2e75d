import * as z from 'zod'
import { Config } from './config.ts'

/** As much of JSON Schema as ours has. */
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
  /** Ours: its value may contain a password. */
  isSensitive?: boolean
}

/** One thing that can be said in the file. */
export interface Field {
  /** With dots: `server.port`. */
  path: string
  schema: ConfigSchema
}

/** For editors, and for us to read: what may be written, before defaults are filled in. The conversion runs once per process. */
export function toJsonSchema(): ConfigSchema {
  return (converted ??= z.toJSONSchema(Config, { io: 'input' }) as ConfigSchema)
}

let converted: ConfigSchema | undefined

/** All fields that are no sections, in the order of the schema. A list, or a map with names of the user's, is one field. */
export function listFields(schema: ConfigSchema = toJsonSchema(), prefix = ''): Field[] {
  return Object.entries(schema.properties ?? {}).flatMap(([key, inner]) => {
    const path = prefix === '' ? key : `${prefix}.${key}`
    return inner.properties === undefined ? [{ path, schema: inner }] : listFields(inner, path)
  })
}

/** What the schema says of the value at a path, list items and map entries included; undefined for a path it does not know. */
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
