import { join } from 'node:path'
import type { Logger } from 'pino'
import type { LoadedConfig } from '../config/load-config.ts'
import { loadSecret } from '../config/load-secret.ts'
import { defaultNodeId } from '../config/node-section.ts'
import { systemClock } from '../lib/async/clock.ts'
import { isLoopbackHost } from '../lib/net/loopback-host.ts'
import { OwnAddresses } from '../lib/net/own-addresses.ts'
import { protectFromOutOfMemory } from '../lib/process/oom-score.ts'
import { randomIds } from '../lib/random-ids.ts'
import { RolloutError } from '../model/failure.ts'
import { checkTask } from '../node/check-task.ts'
import type { AccessToken } from '../server/listen/access.ts'
import { mayActFor } from '../server/listen/node-pattern.ts'
import { RolloutServer, type ServerOptions } from '../server/server.ts'
import type { DatabaseLocation } from '../store/database.ts'
import { obtainTokens, removeServerNote, tokensFile, writeServerNote } from './data-folder.ts'
import { readVersion } from './version.ts'
import { assertWritable } from './writable.ts'

export interface OpenServer extends AsyncDisposable {
  /** URL for other machines. */
  url: string
  /** URL for this process. */
  localUrl: string
  /** Tokens for a node and a trainer of this machine; absent for an open server. */
  tokens?: { file?: string; node?: string; trainer?: string }
}

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS

type Env = Readonly<Record<string, string | undefined>>

interface OpenServerDeps {
  env: Env
  logger: Logger
  signal?: AbortSignal
  /** Addresses of Polar itself, which callbacks may not connect to; the server adds its own. */
  own?: OwnAddresses
}

type ServerConfig = LoadedConfig['config']['server']

/**
 * Opens the configured server, and writes its URL into the data folder, where commands on this machine find it. The result
 * owns the database connection, the HTTP server, the maintenance jobs and the callbacks; disposing it closes them. Throws
 * the signal's reason if the signal aborts before the server is open.
 */
export async function openServer(
  { config }: LoadedConfig,
  { env, logger, signal, own: addresses = new OwnAddresses() }: OpenServerDeps,
): Promise<OpenServer> {
  const { data, server: section } = config
  assertGuarded(section)
  protectFromOutOfMemory()
  const configured = await loadTokens(section, env)
  const database = await findDatabase(section, data, env)
  const secret = await loadSecret('server.callbacks.secret', sourceOf(section.callbacks, 'secret'), env)
  await assertWritable(data, '--dir')
  const own = section.open || configured.length > 0 ? undefined : await obtainTokens(data)
  const access = own === undefined ? configured : toAccess(own)
  const options: ServerOptions = {
    database,
    filesDir: section.files ?? join(data, 'files'),
    listen: {
      host: section.host,
      port: section.port,
      tls: section.tls && { certFile: section.tls.cert_file, keyFile: section.tls.key_file },
    },
    access: { tokens: access, isOpen: section.open },
    callbacks: {
      allowedHosts: section.callbacks.allow_hosts,
      attempts: section.callbacks.attempts,
      timeoutMs: section.callbacks.timeout_seconds * 1000,
      own: addresses,
      secret,
    },
    leaseMs: section.lease_seconds * 1000,
    retention: toRetention(section.retention),
    quotas: toQuotas(section.quotas),
    // Nodes check modules, files and secrets.
    checkTask: (task) => checkTask(task, { hasFiles: false }),
    clock: systemClock,
    monotonic: () => performance.now(),
    ids: randomIds(Date.now),
    logger,
    version: readVersion(),
  }
  if (section.url !== undefined) addresses.add(section.url)
  signal?.throwIfAborted()
  const server = await RolloutServer.start(options)
  const url = section.url ?? server.url
  try {
    signal?.throwIfAborted()
    await writeServerNote(data, { url, pid: process.pid })
  } catch (error) {
    await server[Symbol.asyncDispose]()
    throw error
  }
  const nodeId = config.node.id ?? defaultNodeId()
  const nodeToken = access.find(({ scopes, nodes }) => scopes.includes('node') && mayActFor(nodes, nodeId))
  const trainerToken = access.find(({ scopes }) => scopes.includes('trainer'))
  return {
    url,
    localUrl: server.url,
    tokens: section.open
      ? undefined
      : {
          file: own === undefined ? undefined : tokensFile(data),
          node: nodeToken?.token,
          trainer: trainerToken?.token,
        },
    async [Symbol.asyncDispose]() {
      await removeServerNote(data, process.pid)
      await server[Symbol.asyncDispose]()
    },
  }
}

/** Rejects an unsafe configuration before anything opens. */
function assertGuarded({ host, open, tokens }: ServerConfig): void {
  if (isLoopbackHost(host)) {
    if (!open || tokens.length === 0) return
    throw new RolloutError('config.invalid', 'server.open: an open server does not check tokens; remove server.tokens.')
  }
  if (open) {
    const message = `server.open: ${host} can be reached from other machines; only a server on 127.0.0.1 may be open.`
    throw new RolloutError('config.invalid', message)
  }
  if (tokens.length > 0) return
  const message = [
    `server.host: ${host} can be reached from other machines, so it needs tokens, but server.tokens is empty.`,
    'Add a token for trainers and a token for nodes to polar.yaml:',
    '  server:',
    '    tokens:',
    '      - { name: trainer, scopes: [trainer, read], token_file: /etc/polar/trainer.token }',
    '      - { name: nodes, scopes: [node], token_file: /etc/polar/node.token }',
    'A token is any random text: head -c 24 /dev/urandom | base64 > /etc/polar/trainer.token',
  ]
  throw new RolloutError('config.invalid', message.join('\n'))
}

async function loadTokens({ tokens }: ServerConfig, env: Env): Promise<AccessToken[]> {
  return Promise.all(
    tokens.map(async (entry, index) => {
      const token = await loadSecret(`server.tokens.${index}.token`, sourceOf(entry, 'token'), env)
      const { name, scopes, nodes } = entry
      return { name, scopes, token: token!, nodes }
    }),
  )
}

function toAccess(own: Awaited<ReturnType<typeof obtainTokens>>): AccessToken[] {
  return [
    { name: 'trainer', scopes: ['trainer', 'read'], token: own.trainer },
    { name: 'node', scopes: ['node'], token: own.node },
    { name: 'read', scopes: ['read'], token: own.read },
  ]
}

async function findDatabase(section: ServerConfig, data: string, env: Env): Promise<DatabaseLocation> {
  const url =
    (await loadSecret('server.database', sourceOf(section, 'database'), env)) ?? section.database ?? 'embedded'
  if (url === 'embedded') return { dir: join(data, 'database') }
  return { url, ...(section.connections === undefined ? {} : { connections: section.connections }) }
}

function sourceOf(section: object, name: string): { file: string | undefined; env: string | undefined } {
  const fields = section as Readonly<Record<string, string | undefined>>
  return { file: fields[`${name}_file`], env: fields[`${name}_env`] }
}

/** Undefined if no task is ever deleted. */
function toRetention(section: ServerConfig['retention']): ServerOptions['retention'] {
  const { days, total_gb: gigabytes, at_least_hours: hours } = section
  if (days === undefined && gigabytes === undefined) return undefined
  return {
    olderThanMs: days === undefined ? undefined : days * DAY_MS,
    maxBytes: gigabytes === undefined ? undefined : gigabytes * 1e9,
    keepAtLeastMs: hours * HOUR_MS,
  }
}

function toQuotas(quotas: ServerConfig['quotas']): NonNullable<ServerOptions['quotas']> {
  return Object.fromEntries(
    Object.entries(quotas).map(([name, { max_queued_sessions: queued, max_running_sessions: running }]) => [
      name,
      { maxQueuedSessions: queued, maxRunningSessions: running },
    ]),
  )
}
