import type { Config } from '../../config/config.ts'

/** Said to jobs in the configuration they are given, or none of their business. */
const NOT_FOR_JOBS = /^POLAR_(?:TOKEN|TOKEN_FILE|CONFIG|DATA|DATABASE_URL|SERVER_.*|CLUSTER_.*|NODE_.*|ENGINE_.*|LOG)$/

/** Node.js reads it when it starts: a file of certificates. */
const AUTHORITIES = 'NODE_EXTRA_CA_CERTS'

/** Environment variables that jobs cannot do without, by name: those of ours, and those the configuration names. */
export function exportedNames({ engine, node }: Config, env: NodeJS.ProcessEnv): string[] {
  const { token_env: _, ...rest } = node
  const ours = Object.keys(env).filter((name) => name.startsWith('POLAR_') && !NOT_FOR_JOBS.test(name))
  // A node that does not trust whoever signed the server's certificate cannot join.
  if (env[AUTHORITIES]) ours.push(AUTHORITIES)
  const names = new Set([...ours, ...secretNames(engine), ...secretNames(rest), ...(node.allow?.env ?? [])])
  return [...names].filter((name) => env[name] !== undefined).sort()
}

/** What settings such as `key_env` name, wherever they stand. */
function secretNames(value: unknown): string[] {
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([key, inner]: [string, unknown]) =>
    key.endsWith('_env') && typeof inner === 'string' ? [inner] : secretNames(inner),
  )
}
