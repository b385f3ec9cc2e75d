import { randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { allowModules } from '../../lib/process/load-module.ts'
import { createCustomRuntime, kindOf, loadRuntime, type RuntimePlug } from '../../node/sandbox/load-runtime.ts'
import { runtimes } from '../../node/sandbox/runtimes/index.ts'
import type { Mount, NetworkPolicy, Runtime, SandboxLimits, SandboxSpec } from '../../node/sandbox/runtimes/runtime.ts'
import { option, parseNumber, usageError, type FlagValues } from '../command.ts'

const DEFAULT_DIR = join('.polar', 'sandboxes')
const NAME = 'sandbox'

export const SANDBOX_DIR_HELP = `Folder of sandboxes (default: POLAR_SANDBOX_DIR, else ${DEFAULT_DIR})`

/** Flags of a new sandbox. */
export const SANDBOX_FLAGS = {
  image: option('IMAGE', 'Image, or root folder, that the sandbox starts from'),
  network: option('none|open|HOST,…', 'Network access (default: none)'),
  'memory-mb': option('N', 'Memory limit in MB'),
  pids: option('N', 'Limit of processes'),
  cpus: option('N', 'CPU limit in cores'),
  'disk-mb': option('N', 'Disk limit in MB'),
  mount: option('FROM:TO[:rw],…', 'Folders of this machine to mount, read-only unless rw'),
  workdir: option('PATH', 'Working directory of the command', { default: '/workspace' }),
}
type SandboxFlags = FlagValues<typeof SANDBOX_FLAGS>

/** The user of this program can run any code, so a module that the user names is allowed. */
export async function loadCustomRuntime(
  file: string | undefined,
  kind: string | undefined,
): Promise<RuntimePlug | undefined> {
  if (file === undefined) return undefined
  if (kind !== undefined) throw usageError(NAME, 'use --runtime or --runtime-module, not both')
  const path = resolve(file)
  return loadRuntime(path, { allowed: await allowModules([path]) })
}

export interface RuntimeOptions {
  /** Runtime of a module. */
  custom?: RuntimePlug | undefined
  /** Settings of the config file; absent: the defaults. */
  settings?: Readonly<Record<string, unknown>> | undefined
}

/** Opens a runtime, whose folder is below `dir`. */
export function openRuntime(
  kind: string,
  dir: string | undefined,
  env: NodeJS.ProcessEnv,
  { custom, settings }: RuntimeOptions = {},
): Runtime {
  const deps = { dir: join(resolve(dir ?? env['POLAR_SANDBOX_DIR'] ?? DEFAULT_DIR), kind), now: Date.now }
  if (custom !== undefined && kindOf(custom) === kind) return createCustomRuntime(custom, {}, deps)
  return runtimes.create(runtimes.config.parse({ kind, ...settings }), deps)
}

/** Throws RolloutError `config.invalid` for invalid values, and for limits that the runtime does not support. */
export function toSandboxSpec(flags: SandboxFlags, runtime: Runtime, leaseUntil: number): SandboxSpec {
  const limits = toLimits(flags)
  const missing = Object.keys(limits).filter((limit) => !runtime.capabilities.limits.some((known) => known === limit))
  if (missing.length > 0) throw usageError(NAME, `${runtime.kind} cannot limit ${missing.join(', ')} here`)
  const network = toNetwork(flags.network, runtime)
  if (!runtime.capabilities.networks.includes(network.kind))
    throw usageError(NAME, `${runtime.kind} supports only the networks ${runtime.capabilities.networks.join(', ')}`)
  if (flags.image === undefined && runtime.capabilities.images === 'required')
    throw usageError(NAME, `${runtime.kind} needs --image`)
  return {
    id: `cli-${randomUUID().slice(0, 13)}`,
    ...(flags.image !== undefined && { image: flags.image }),
    workdir: flags.workdir,
    env: {},
    limits,
    network,
    mounts: flags.mount?.split(',').map(toMount) ?? [],
    labels: { by: 'polar sandbox', pid: String(process.pid) },
    leaseUntil,
  }
}

function toLimits(flags: SandboxFlags): SandboxLimits {
  const whole = (flag: 'memory-mb' | 'pids' | 'disk-mb', max: number): number | undefined =>
    parseNumber(NAME, flag, flags[flag], { min: 1, max })
  const cpus = flags.cpus === undefined ? undefined : Number(flags.cpus)
  if (cpus !== undefined && !(cpus >= 0.01 && cpus <= 1024))
    throw usageError(NAME, `--cpus must be a number from 0.01 to 1024, not "${flags.cpus}"`)
  const limits = { cpus, memoryMb: whole('memory-mb', 2 ** 24), pids: whole('pids', 2 ** 22), diskMb: whole('disk-mb', 2 ** 24) } // prettier-ignore
  return Object.fromEntries(Object.entries(limits).filter(([, value]) => value !== undefined))
}

/** The default is no network if the runtime supports this. */
function toNetwork(text: string | undefined, { capabilities }: Runtime): NetworkPolicy {
  if (text === undefined) return { kind: capabilities.networks.includes('none') ? 'none' : 'open' }
  if (text === 'none' || text === 'open') return { kind: text }
  const hosts = text.split(',').map((host) => host.trim())
  if (hosts.some((host) => !/^[\w.:-]+$/.test(host)))
    throw usageError(NAME, `--network must be none, open, or host names separated by commas, not "${text}"`)
  return { kind: 'allow', hosts }
}

function toMount(text: string): Mount {
  const [from = '', target = '', mode = 'ro', ...more] = text.split(':')
  if (from === '' || !target.startsWith('/') || (mode !== 'ro' && mode !== 'rw') || more.length > 0)
    throw usageError(NAME, `--mount must be SOURCE:/TARGET or SOURCE:/TARGET:rw, not "${text}"`)
  const source = resolve(from)
  if (!existsSync(source)) throw usageError(NAME, `the folder ${source} of --mount does not exist`)
  return { source, target, isReadOnly: mode === 'ro' }
}
