import { homedir } from 'node:os'
import { join } from 'node:path'
import type { Config } from '../config/config.ts'
import { loadConfig } from '../config/load-config.ts'
import { loadSecret } from '../config/load-secret.ts'
import { toRuntimeSettings, type RuntimeSettings } from '../config/runtimes-section.ts'
import { findBubblewrap, type FoundBubblewrap } from '../node/bubblewrap/find-bubblewrap.ts'
import { HOST_PATH } from '../node/sandbox/paths.ts'

type Environment = Readonly<Record<string, string | undefined>>

/** Includes the download of bwrap. */
const FIND_MS = 120_000

export const RUNTIMES_CONFIG_FLAG = {
  type: 'string',
  hint: 'FILE',
  description: 'Settings of which node.runtime and node.runtimes are read (default: POLAR_CONFIG, else polar.yaml)',
} as const

/** `node.runtimes` of a configuration, with the passwords that it names. */
export function readRuntimeSettings({ node }: Config, env: Environment): Promise<RuntimeSettings> {
  return toRuntimeSettings(node.runtimes, async (login) => {
    const source = { file: login.password_file, env: login.password_env }
    return (await loadSecret(`node.runtimes: password of ${login.registry}: password`, source, env))!
  })
}

/** What the configuration file says about sandboxes, for commands that take nothing else from it. */
export async function loadRuntimeSettings(
  env: Environment,
  file?: string,
): Promise<{ runtime: string | undefined; runtimes: RuntimeSettings; sandboxMemoryMb: number | undefined }> {
  const { config } = await loadConfig({ env, ...(file === undefined ? {} : { file }) })
  const { runtime, sandbox_memory_mb: sandboxMemoryMb } = config.node
  return { runtime, runtimes: await readRuntimeSettings(config, env), sandboxMemoryMb }
}

/** The settings of one runtime, with the bwrap program that this machine has or fetches. */
export async function completeSettings(
  kind: string,
  settings: Readonly<Record<string, unknown>>,
  env: Environment,
): Promise<Readonly<Record<string, unknown>>> {
  if (kind !== 'bubblewrap') return settings
  const { program } = await locateBubblewrap(settings, env)
  return { ...settings, program }
}

/** Throws `runtime.unavailable` when there is no bwrap and none can be fetched. */
export function locateBubblewrap(
  settings: Readonly<Record<string, unknown>>,
  env: Environment,
): Promise<FoundBubblewrap> {
  const { program } = settings
  return findBubblewrap({
    ...(typeof program === 'string' ? { configured: program } : {}),
    cache: join(env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'polar'),
    platform: `${process.platform}-${process.arch}`,
    path: `${env['PATH'] ?? ''}:${HOST_PATH}`,
    env,
    signal: AbortSignal.timeout(FIND_MS),
  })
}
