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
  /** Whether it is on this machine, and its nodes may be. */
  isLocal: boolean
}

export interface ServerFlags {
  config: string | undefined
  dir: string | undefined
  server: string | undefined
  'token-file': string | undefined
}

/** The server a person means: by flag, environment, file, or the one that was started in this folder. */
export async function findServer({
  server,
  'token-file': tokenFile,
  config: file,
  dir,
}: ServerFlags): Promise<FoundServer> {
  const loaded = await loadFromFlags({
    ...(file === undefined ? {} : { config: file }),
    dir,
    server,
    'token-file': tokenFile,
  })
  const { config } = loaded
  const note = await readServerNote(config.data)
  const url = isSaid(loaded, 'node.server')
    ? config.node.server
    : (config.server.url ?? config.node.server ?? note?.url)
  if (url === undefined) {
    const message = `No server was started with the folder ${config.data}. Start one with polar up, or say where it is with --server URL.`
    throw new RolloutError('server.unreachable', message)
  }
  const token = await findToken(loaded, url === note?.url)
  const client = createClient({ baseUrl: url, ...(token === undefined ? {} : { token }) })
  const hostname = URL.canParse(url) ? new URL(url).hostname.replace(/^\[(.*)\]$/, '$1') : ''
  return { url, client, isLocal: isLoopbackHost(hostname) }
}

/** For trainers. What the folder or the server's own file has goes to that server only. */
async function findToken(loaded: LoadedConfig, isOwn: boolean): Promise<string | undefined> {
  const { config } = loaded
  if (isSaid(loaded, 'node.token_file') || isSaid(loaded, 'node.token_env')) {
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

/** By a flag or the environment: in the file that setting is about nodes. */
function isSaid({ origins }: LoadedConfig, path: string): boolean {
  const kind = origins.get(path)?.kind
  return kind === 'flag' || kind === 'environment'
}

const HINTS: Partial<Record<FailureCode, string>> = {
  'server.unreachable': 'Start one with polar up, or say where it is with --server URL.',
  'request.unauthorized': 'Give a token with --token-file FILE or POLAR_TOKEN; one that was made is in tokens.json.',
  'request.forbidden': 'Give another token.',
  'request.not-found': 'polar task ls shows what there is.',
  'request.over-quota': 'Wait until some of it is done, or have the quota raised: server.quotas.',
}

/** The server's failure as one line: what happened, its code, what to try. */
export function explainFailure(error: unknown): unknown {
  if (!(error instanceof RolloutError) || !/^(?:server|request)\./.test(error.code)) return error
  const saysWhat = error.message.includes('polar up') || certificateHint(error.cause) !== undefined
  const hint = saysWhat ? undefined : HINTS[error.code]
  const message = `${error.message.trim()} (${error.code})${hint === undefined ? '' : ` ${hint}`}`
  return new RolloutError(error.code, message, { cause: error, status: error.failure.status })
}
