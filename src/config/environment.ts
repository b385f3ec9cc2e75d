import type { ConfigSchema, Field } from './list-fields.ts'

/** A value from a flag or the environment, with its origin. */
export interface Setting {
  path: string
  value: unknown
  origin: { kind: 'flag' | 'environment'; name: string }
}

/** Variables whose names do not follow from their paths. For secrets the config holds the name of the variable, not its value. */
const NAMED: readonly { variable: string; paths: readonly string[]; isSecret: boolean }[] = [
  { variable: 'POLAR_SERVER_URL', paths: ['server.url', 'node.server'], isSecret: false },
  { variable: 'POLAR_TOKEN', paths: ['node.token_env'], isSecret: true },
  { variable: 'POLAR_TOKEN_FILE', paths: ['node.token_file'], isSecret: false },
  { variable: 'POLAR_UPSTREAM_KEY', paths: ['engine.key_env'], isSecret: true },
  { variable: 'POLAR_DATABASE_URL', paths: ['server.database_env'], isSecret: true },
  { variable: 'POLAR_HARNESS_DIR', paths: ['node.harness_dir'], isSecret: false },
]

/** Returns the variable of a path: `POLAR_SERVER_LEASE_SECONDS` for `server.lease_seconds`. */
export function variableOf(path: string): string {
  return NAMED.find(({ paths }) => paths.includes(path))?.variable ?? `POLAR_${path.replaceAll('.', '_').toUpperCase()}`
}

/** Whether a variable can hold the field: a string, a number, a boolean, or a list of strings separated by commas. */
function isForEnvironment({ path, schema }: Field): boolean {
  if (path.startsWith('node.runtimes.')) return false
  return ['string', 'number', 'integer', 'boolean'].includes(schema.type ?? '') || schema.items?.type === 'string'
}

export function readEnvironment(
  env: Readonly<Record<string, string | undefined>>,
  fields: readonly Field[],
): { settings: Setting[]; warnings: string[] } {
  const settings: Setting[] = []
  const known = new Set<string>()
  for (const { variable, paths, isSecret } of NAMED) {
    known.add(variable)
    const text = env[variable]
    if (text === undefined || text === '') continue
    const value = isSecret ? variable : text
    settings.push(...paths.map((path) => ({ path, value, origin: { kind: 'environment' as const, name: variable } })))
  }
  for (const field of fields) {
    const name = variableOf(field.path)
    if (known.has(name) || !isForEnvironment(field)) continue
    known.add(name)
    const text = env[name]
    if (text === undefined || text === '' || isServiceLink(name, text)) continue
    settings.push({ path: field.path, value: fromText(text, field.schema), origin: { kind: 'environment', name } })
  }
  const strays = Object.keys(env).filter((name) => isStray(name, known))
  return { settings, warnings: strays.map((name) => `${name} is set but is not a setting; it is ignored.`) }
}

/** Converts text to the type of the schema. Text that cannot be converted is returned unchanged, and the schema rejects it. */
export function fromText(text: string, schema: ConfigSchema | undefined): unknown {
  if (schema?.type === 'number' || schema?.type === 'integer')
    return text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : text
  if (schema?.type === 'boolean') return { true: true, '1': true, false: false, '0': false }[text] ?? text
  if (schema?.type === 'array')
    return text
      .split(',')
      .map((word) => word.trim())
      .filter((word) => word !== '')
  return text
}

const SECTION = /^POLAR_(?:SERVER|NODE|ENGINE|CLUSTER)_/

function isStray(name: string, known: ReadonlySet<string>): boolean {
  return SECTION.test(name) && !known.has(name) && !/_SERVICE_(?:HOST|PORT)|_PORT_\d+_/.test(name)
}

/** Kubernetes sets POLAR_SERVER_PORT=tcp://10.0.0.1:8080 in pods if a service is named polar-server. */
function isServiceLink(name: string, text: string): boolean {
  return name.endsWith('_PORT') && /^(?:tcp|udp|sctp):\/\//.test(text)
}
