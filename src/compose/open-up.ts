import type { Logger } from 'pino'
import type * as z from 'zod'
import { createClient, type Client } from '../client/client.ts'
import type { Config } from '../config/config.ts'
import { loadConfig, type LoadedConfig } from '../config/load-config.ts'
import { defaultNodeId } from '../config/node-section.ts'
import { OwnAddresses } from '../lib/net/own-addresses.ts'
import { RolloutError } from '../model/failure.ts'
import { mayActFor } from '../server/listen/node-pattern.ts'
import { createLogger } from './create-logger.ts'
import { openServer, type OpenServer } from './open-server.ts'
import { openWorker, type OpenWorker } from './open-worker.ts'

/** The settings of `polar.yaml`. Every setting has a default. */
export type Settings = z.input<typeof Config>

export interface OpenUp extends AsyncDisposable {
  /** URL of the server, as other machines reach it. */
  url: string
  /** Calls the server with the trainer's token. */
  client: Client
  server: OpenServer
  worker: OpenWorker
}

export interface UpDeps {
  env: NodeJS.ProcessEnv
  logger: Logger
  /** Called when the server is open. Aborting the returned signal ends the start of the node. */
  onServer?: (server: OpenServer) => AbortSignal
  /** Reports the part that is being started. */
  onStep?: (part: string) => void
}

/**
 * Opens a server, a node, a gateway and an engine on this machine, as `polar up` does. Relative paths in `settings` start at
 * the working directory. Disposing the result closes all of them; unfinished sessions continue at the next start with the same data folder.
 */
export async function openUp(settings: Settings, deps: Partial<UpDeps> = {}): Promise<OpenUp> {
  const { env = process.env } = deps
  const loaded = await loadConfig({ settings, env: {} })
  return openAll(loaded, { ...deps, env, logger: deps.logger ?? createLogger(loaded.config.log) })
}

/** Opens the same with a loaded configuration. */
export async function openAll(loaded: LoadedConfig, deps: UpDeps): Promise<OpenUp> {
  const { config } = loaded
  const { env, logger } = deps
  assertNodeToken(config)
  await using parts = new AsyncDisposableStack()
  const own = new OwnAddresses()
  const server = parts.use(await openServer(loaded, { env, logger, own }))
  const signal = deps.onServer?.(server) ?? new AbortController().signal
  // A certificate names a host, not an address of this machine.
  const url = config.server.tls === undefined ? server.localUrl : server.url
  const worker = parts.use(
    await openWorker({
      config,
      server: { url, token: server.tokens?.node },
      isOwnMachine: true,
      own,
      env,
      logger,
      signal,
      onStep: deps.onStep,
    }),
  )
  const client = createClient({ baseUrl: url, token: server.tokens?.trainer })
  const all = parts.move()
  return { url: server.url, client, server, worker, [Symbol.asyncDispose]: () => all.disposeAsync() }
}

function assertNodeToken({ server: { tokens }, node }: Config): void {
  if (tokens.length === 0) return
  const ofNodes = tokens.filter(({ scopes }) => scopes.includes('node'))
  const nodeId = node.id ?? defaultNodeId()
  if (ofNodes.some(({ nodes }) => mayActFor(nodes, nodeId))) return
  const why =
    ofNodes.length === 0
      ? 'no token has the scope node, which the node of polar up needs.'
      : `no token with the scope node allows ${nodeId}, the id of the node of polar up. Add it to nodes, or set node.id.`
  throw new RolloutError('config.invalid', `server.tokens: ${why}`)
}
