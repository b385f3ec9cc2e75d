import { createClient, type Client } from '../../client/client.ts'
import { certificateHint } from '../../client/server-error.ts'
import type { LoadedConfig } from '../../config/load-config.ts'
import { loadSecret } from '../../config/load-secret.ts'
import { RolloutError, type FailureCode } from '../../model/failure.ts'
import { loadFromFlags } from './config-flags.ts'
import { readServerNote, readTokens } from '../../compose/data-folder.ts'
import { isLoopbackHost } from '../../lib/net/loopback-host.ts'

export interface FoundServer {
  url: string
  client: Client
  /** Whether the server is on this machine; its nodes may be too. */
  isLocal: boolean
}

export interface ServerFlags {
  config: string | undefined
  dir: string | undefined
  server: string | undefined
  'token-file': string | undefined
}

/** Finds the server by flag, environment or config file, else the server that uses the data folder. */
export async function findServer(flags: ServerFlags): Promise<FoundServer> {
  const { config: file, dir, server, 'token-file': tokenFile } = flags
  const loaded = await loadFromFlags({ config: file, dir, server, 'token-file': tokenFile })
  const { config } = loaded
  const note = await readServerNote(config.data)
  const url = isExplicit(loaded, 'node.server')
    ? config.node.server
    : (config.server.url ?? config.node.server ?? note?.url)
  if (url === undefined) {
    const message = `No server uses the folder ${config.data}. Start one with polar up, or name it with --server URL.`
    throw new RolloutError('server.unreachable', message)
  }
  const token = await findToken(loaded, url === note?.url)
  const client = createClient({ baseUrl: url, token })
  const hostname = URL.canParse(url) ? new URL(url).hostname.replace(/^\[(.*)\]$/, '$1') : ''
  return { url, client, isLocal: isLoopbackHost(hostname) }
}

/** Returns the server that a node joins and a token of scope node: as configured, or those of the data folder. */
export async function findNodeServer(
  { data, node, server }: LoadedConfig['config'],
  env: NodeJS.ProcessEnv,
): Promise<{ url: string; token: string | undefined } | undefined> {
  const note = await readServerNote(data)
  const url = node.server ?? server.url ?? note?.url
  if (url === undefined) return undefined
  const token = await loadSecret('node.token', { file: node.token_file, env: node.token_env }, env)
  // The token of this folder is sent to no other server.
  const own = url === note?.url ? (await readTokens(data))?.node : undefined
  return { url, token: token ?? own }
}

/** Returns a token of scope trainer. A token of the data folder is sent only to the server of that folder. */
async function findToken(loaded: LoadedConfig, isOwn: boolean): Promise<string | undefined> {
  const { config } = loaded
  if (isExplicit(loaded, 'node.token_file') || isExplicit(loaded, 'node.token_env')) {
    return loadSecret('token', { file: config.node.token_file, env: config.node.token_env }, process.env)
  }
  const index = config.server.tokens.findIndex(({ scopes }) => scopes.includes('trainer'))
  const entry = config.server.tokens[index]
  if (entry !== undefined) {
    const source = { file: entry.token_file, env: entry.token_env }
    return loadSecret(`server.tokens.${index}.token`, source, process.env)
  }
  return isOwn ? (await readTokens(config.data))?.trainer : undefined
}

/** Whether a flag or the environment sets the path. The config file sets it for nodes. */
function isExplicit({ origins }: LoadedConfig, path: string): boolean {
  const kind = origins.get(path)?.kind
  return kind === 'flag' || kind === 'environment'
}

const HINTS: Partial<Record<FailureCode, string>> = {
  'server.unreachable': 'Start one with polar up, or name it with --server URL.',
  'request.unauthorized': 'Set a token with --token-file FILE or POLAR_TOKEN; generated tokens are in tokens.json.',
  'request.forbidden': 'Use another token.',
  'request.not-found': 'List the tasks with: polar task ls',
  'request.over-quota': 'Wait until sessions have ended, or raise the quota in server.quotas.',
}

/** Returns a server failure as one line: message, code and remedy. */
export function explainFailure(error: unknown): unknown {
  if (!(error instanceof RolloutError) || !/^(?:server|request)\./.test(error.code)) return error
  const saysWhat = error.message.includes('polar up') || certificateHint(error.cause) !== undefined
  const hint = saysWhat ? undefined : HINTS[error.code]
  const message = `${error.message.trim()} (${error.code})${hint === undefined ? '' : ` ${hint}`}`
  return new RolloutError(error.code, message, { cause: error, status: error.failure.status })
}
