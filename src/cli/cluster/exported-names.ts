import type { Config } from '../../config/config.ts'

/** Variables that the config file of the jobs replaces, or that jobs do not need. */
const NOT_FOR_JOBS = /^POLAR_(?:TOKEN|TOKEN_FILE|CONFIG|DATA|DATABASE_URL|SERVER_.*|CLUSTER_.*|NODE_.*|ENGINE_.*|LOG)$/

/** File of certificates that Node.js reads at its start. */
const AUTHORITIES = 'NODE_EXTRA_CA_CERTS'

/** Returns the names of environment variables that jobs need: those of Polar, and those that the configuration names. */
export function exportedNames({ engine, node }: Config, env: NodeJS.ProcessEnv): string[] {
  const { token_env: _, ...rest } = node
  const ours = Object.keys(env).filter((name) => name.startsWith('POLAR_') && !NOT_FOR_JOBS.test(name))
  // Without it, a node may reject the server's certificate.
  if (env[AUTHORITIES]) ours.push(AUTHORITIES)
  const names = new Set([...ours, ...secretNames(engine), ...secretNames(rest), ...(node.allow?.env ?? [])])
  return [...names].filter((name) => env[name] !== undefined).sort()
}

/** Returns the values of all keys like `key_env`, at any depth. */
function secretNames(value: unknown): string[] {
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([key, inner]: [string, unknown]) =>
    key.endsWith('_env') && typeof inner === 'string' ? [inner] : secretNames(inner),
  )
}
