import { homedir } from 'node:os'
import { join } from 'node:path'
import type { Config } from '../config/config.ts'
import { loadConfig } from '../config/load-config.ts'
import { loadSecret } from '../config/load-secret.ts'
import { toRuntimeSettings, type RuntimeSettings } from '../config/runtimes-section.ts'
import type { GitCredential } from '../node/sandbox/prepare/git-access.ts'
import { findBubblewrap, type FoundBubblewrap } from '../node/sandbox/bubblewrap-program/find-bubblewrap.ts'
import { HOST_PATH } from '../node/sandbox/linux/files/paths.ts'

type Environment = Readonly<Record<string, string | undefined>>

/** Includes the download of bwrap. */
const FIND_MS = 120_000

/** Reads `node.runtimes`, and loads its passwords. */
export function readRuntimeSettings({ node }: Config, env: Environment): Promise<RuntimeSettings> {
  return toRuntimeSettings(node.runtimes, async (login) => {
    const source = { file: login.password_file, env: login.password_env }
    return (await loadSecret(`node.runtimes: password of ${login.registry}: password`, source, env))!
  })
}

/** Reads `node.checkouts.credentials`, and loads its tokens. */
export function readGitCredentials({ node }: Config, env: Environment): Promise<GitCredential[]> {
  return Promise.all(
    node.checkouts.credentials.map(async (entry, index): Promise<GitCredential> => {
      const { host, user, ssh_key_file: keyFile, known_hosts_file: knownHostsFile } = entry
      if (keyFile !== undefined && knownHostsFile !== undefined) return { kind: 'ssh', host, keyFile, knownHostsFile }
      const source = { file: entry.token_file, env: entry.token_env }
      const token = await loadSecret(`node.checkouts.credentials.${index}.token`, source, env)
      return { kind: 'token', host, user, token: token! }
    }),
  )
}

/** Loads the settings that commands without a server use. */
export async function loadRuntimeSettings(
  env: Environment,
  file?: string,
): Promise<{
  runtime: string | undefined
  runtimes: RuntimeSettings
  gitCredentials: GitCredential[]
  sandboxMemoryMb: number | undefined
}> {
  const { config } = await loadConfig({ env, file })
  return {
    runtime: config.node.runtime,
    runtimes: await readRuntimeSettings(config, env),
    gitCredentials: await readGitCredentials(config, env),
    sandboxMemoryMb: config.node.sandbox_memory_mb,
  }
}

/** Completes the settings of bubblewrap with the path of its program, which is downloaded if necessary. */
export async function completeSettings(
  kind: string,
  settings: Readonly<Record<string, unknown>>,
  env: Environment,
): Promise<Readonly<Record<string, unknown>>> {
  if (kind !== 'bubblewrap') return settings
  const { program } = await locateBubblewrap(settings, env)
  return { ...settings, program }
}

/** Throws `runtime.unavailable` if bwrap is neither installed nor downloadable. */
export function locateBubblewrap(
  settings: Readonly<Record<string, unknown>>,
  env: Environment,
): Promise<FoundBubblewrap> {
  const { program } = settings
  return findBubblewrap({
    configured: typeof program === 'string' ? program : undefined,
    cache: join(env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'polar'),
    platform: `${process.platform}-${process.arch}`,
    path: `${env['PATH'] ?? ''}:${HOST_PATH}`,
    env,
    signal: AbortSignal.timeout(FIND_MS),
  })
}
