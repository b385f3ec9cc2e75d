import { createClient, type Client } from '../../client/client.ts'
import type { Config } from '../../config/config.ts'
import { findNodeServer } from '../input/find-server.ts'

export interface ServerAccess {
  url: string
  token: string | undefined
  client: Client
}

export async function findAccess(config: Config, env: NodeJS.ProcessEnv): Promise<ServerAccess | undefined> {
  const found = await findNodeServer(config, env)
  return found && toAccess(found.url, found.token)
}

export function toAccess(url: string, token: string | undefined): ServerAccess {
  // Few attempts: callers that wait retry anyway.
  return { url, token, client: createClient({ baseUrl: url, attempts: 2, token }) }
}
