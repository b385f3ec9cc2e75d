import { createClient, type Client } from '../../client/client.ts'
import type { Config } from '../../config/config.ts'
import { loadSecret } from '../../config/load-secret.ts'
import { readServerNote, readTokens } from '../../compose/data-folder.ts'

export interface ServerAccess {
  url: string
  token: string | undefined
  client: Client
}

/** Returns the server that nodes join and a token of scope node: as configured, or those of the data folder. */
export async function findAccess(
  { data, node, server }: Config,
  env: NodeJS.ProcessEnv,
): Promise<ServerAccess | undefined> {
  const note = await readServerNote(data)
  const url = node.server ?? server.url ?? note?.url
  if (url === undefined) return undefined
  const token = await loadSecret('node.token', { file: node.token_file, env: node.token_env }, env)
  // The token of this folder is sent to no other server.
  const own = url === note?.url ? (await readTokens(data))?.node : undefined
  return toAccess(url, token ?? own)
}

export function toAccess(url: string, token: string | undefined): ServerAccess {
  // Few attempts: callers that wait retry anyway.
  return { url, token, client: createClient({ baseUrl: url, attempts: 2, token }) }
}
