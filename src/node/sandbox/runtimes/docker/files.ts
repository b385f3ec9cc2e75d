import { rm, symlink } from 'node:fs/promises'
import { basename, dirname } from 'node:path/posix'
import type { Dispatcher } from 'undici'
import * as z from 'zod'
import { errnoOf } from '../../../../lib/fs/errno.ts'
import { readTar, TarError } from '../../../../lib/archive/tar-reader.ts'
import { packTree, TAR_END, tarHeader, tarPadding } from '../../../../lib/archive/tar-writer.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { extractTar, lstatIfThere } from '../../linux/files/extract-tar.ts'
import type { CopyLimits } from '../runtime.ts'
import { ContainerEngineError, ignoreStatus, type ContainerEngine } from './container-engine.ts'

const FILE_TIMEOUT_MS = 30_000
const MAX_LINKS = 10
/** Bits of Go's file modes. */
const MODE_DIRECTORY = 2 ** 31
const MODE_SYMLINK = 2 ** 27

const PathStat = z.looseObject({ mode: z.number(), linkTarget: z.string().default('') })
type PathStat = z.infer<typeof PathStat>

export interface FilesDeps {
  engine: ContainerEngine
  containerId: string
  /** Owner of written files. */
  owner: { uid: number; gid: number }
  /** Runs a program of the container; fails if the container has stopped. */
  runInside(command: readonly string[]): Promise<{ exitCode: number; stdout: string; stderr: string }>
}

/**
 * Accesses a container's files through the engine, which resolves paths inside the container's root: no path of the
 * container can reach a file of this machine, and no program of the container is involved. Works for a stopped
 * container.
 */
export class ContainerFiles {
  readonly #deps: FilesDeps

  constructor(deps: FilesDeps) {
    this.#deps = deps
  }

  async upload(source: string, target: string, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    const stats = await lstatIfThere(source)
    if (stats === undefined)
      throw new RolloutError('runtime.copy-failed', `${source} cannot be uploaded: it does not exist`)
    await this.#put(target, packTree(source, basename(target), this.#deps.owner), {
      isReplaced: stats.isDirectory(),
      signal,
    })
  }

  async writeFile(path: string, data: string | Uint8Array, mode: number, modifiedAt: number): Promise<void> {
    const content = Buffer.from(data)
    const { length: size } = content
    const header = tarHeader({ name: basename(path), kind: 'file', mode, size, modifiedAt, ...this.#deps.owner })
    await this.#put(path, [header, content, tarPadding(size)], {
      isReplaced: false,
      signal: AbortSignal.timeout(FILE_TIMEOUT_MS),
    })
  }

  async download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if ((await lstatIfThere(target)) !== undefined)
      throw new RolloutError('runtime.copy-failed', `${target} already exists; choose another target`)
    const answer = await this.#get(source, signal).catch(async (error: unknown) => {
      const isMissing = error instanceof RolloutError && error.code === 'workspace.file-missing'
      if (isMissing && (await this.#copyBrokenLink(source, target))) return undefined
      throw error
    })
    if (answer === undefined) return
    const { body, headers } = answer
    try {
      // Podman sends the target of such a link, Docker the link itself.
      const stat = statOf(headers)
      if (stat !== undefined && isLink(stat)) await symlink(stat.linkTarget, target)
      else await extractTar(body as AsyncIterable<Buffer>, target, limits)
    } catch (error) {
      await rm(target, { recursive: true, force: true })
      signal.throwIfAborted()
      throw toRolloutError(error, source)
    } finally {
      body.destroy()
    }
  }

  async readFile(path: string, maxBytes: number): Promise<Buffer> {
    const signal = AbortSignal.timeout(FILE_TIMEOUT_MS)
    let at = path
    for (let hop = 0; hop < MAX_LINKS; hop += 1) {
      assertOnDisk(at)
      const { body, headers } = await this.#get(at, signal)
      try {
        assertOnDisk(statOf(headers)?.linkTarget ?? '')
        const content = await readOnly(body as AsyncIterable<Buffer>, path, maxBytes)
        if (content !== 'link') return content
        at = statOf(headers)?.linkTarget ?? ''
      } catch (error) {
        throw toRolloutError(error, path)
      } finally {
        body.destroy()
      }
    }
    throw new RolloutError('workspace.unsafe-file', `${path} is a chain of too many links`)
  }

  /** Creates a directory and its parents; sets the owner of the last one even if it existed. */
  makeDirectory(path: string): Promise<void> {
    return this.makeDirectories([path])
  }

  /** Creates several directories in one request. Each is at or below the first, and all get the owner. */
  async makeDirectories(paths: readonly string[]): Promise<void> {
    const [top] = paths
    if (top === undefined) return
    const { owner } = this.#deps
    let parent = dirname(top)
    while (parent !== '/' && (await this.#stat(parent)) === undefined) parent = dirname(parent)
    const names = new Set(
      paths.flatMap((path) => {
        const missing = path.slice(parent.length).split('/').filter(Boolean)
        return missing.map((_, index) => `${missing.slice(0, index + 1).join('/')}/`)
      }),
    )
    const headers = [...names].map((name) => tarHeader({ name, kind: 'directory', mode: 0o755, ...owner }))
    await this.#send(parent, headers, AbortSignal.timeout(FILE_TIMEOUT_MS))
  }

  async #put(
    target: string,
    entries: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
    { isReplaced, signal }: { isReplaced: boolean; signal: AbortSignal },
  ): Promise<void> {
    const parent = dirname(target)
    const existing = await this.#stat(target)
    if (existing === undefined) {
      if ((await this.#stat(parent)) === undefined) await this.makeDirectory(parent)
      // An existing link is replaced; an existing directory would be merged or block the file.
    } else if (isReplaced || isDirectory(existing) || isLink(existing)) await this.#removeInside(target)
    await this.#send(parent, entries, signal)
  }

  async #send(
    folder: string,
    entries: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
    signal: AbortSignal,
  ): Promise<void> {
    const { engine, containerId } = this.#deps
    let failure: unknown
    async function* archive(): AsyncGenerator<Uint8Array, void, undefined> {
      try {
        yield* entries
        yield TAR_END
      } catch (error) {
        failure = error
        throw error
      }
    }
    try {
      // Otherwise Podman sets the container's first user as the owner of all files.
      const query = { path: folder, copyUIDGID: 'false' }
      await engine.call('PUT', `/containers/${containerId}/archive`, { query, tar: archive(), signal })
    } catch (error) {
      signal.throwIfAborted()
      throw toRolloutError(failure ?? error, folder)
    }
  }

  async #removeInside(path: string): Promise<void> {
    const { exitCode, stderr } = await this.#deps.runInside(['rm', '-rf', '--', path])
    if (exitCode === 0) return
    throw new RolloutError('runtime.copy-failed', `Cannot replace ${path}: ${stderr.trim().slice(-500)}`)
  }

  /** Podman does not find a dangling link. */
  async #copyBrokenLink(path: string, target: string): Promise<boolean> {
    const { exitCode, stdout } = await this.#deps.runInside(['readlink', '-n', '--', path])
    if (exitCode !== 0 || stdout === '') return false
    await symlink(Buffer.from(stdout, 'latin1'), target)
    return true
  }

  async #get(path: string, signal: AbortSignal): Promise<Dispatcher.ResponseData> {
    const { engine, containerId } = this.#deps
    return engine
      .open('GET', `/containers/${containerId}/archive`, { query: { path }, signal })
      .catch((error: unknown) => {
        throw toRolloutError(error, path)
      })
  }

  async #stat(path: string): Promise<PathStat | undefined> {
    const { engine, containerId } = this.#deps
    const answer = await engine
      .open('HEAD', `/containers/${containerId}/archive`, { query: { path } })
      .catch(ignoreStatus(404))
    if (answer === undefined) return undefined
    await answer.body.dump()
    return statOf(answer.headers)
  }
}

/** Virtual files of the kernel are not on the container's disk; Podman returns empty files for them. */
function assertOnDisk(path: string): void {
  if (/^\/(?:dev|proc|sys)(?:\/|$)/.test(path))
    throw new RolloutError('workspace.unsafe-file', `${path} is not a file on a disk`)
}

/** Returns the content of an archive's single file. */
async function readOnly(source: AsyncIterable<Buffer>, path: string, maxBytes: number): Promise<Buffer | 'link'> {
  const chunks: Buffer[] = []
  let entries = 0
  for await (const part of readTar(source)) {
    if ('data' in part) {
      chunks.push(part.data)
      continue
    }
    const { kind, size } = part.entry
    entries += 1
    if (kind === 'symlink' && entries === 1) return 'link'
    if (kind !== 'file' || entries > 1) throw new RolloutError('workspace.unsafe-file', `${path} is not a file`)
    if (size > maxBytes) throw new RolloutError('workspace.too-large', `${path} is larger than ${maxBytes} bytes`)
  }
  return Buffer.concat(chunks)
}

function statOf(headers: Dispatcher.ResponseData['headers']): PathStat | undefined {
  const header = headers['x-docker-container-path-stat']
  if (typeof header !== 'string') return undefined
  return PathStat.parse(JSON.parse(Buffer.from(header, 'base64').toString()))
}

function isDirectory({ mode }: PathStat): boolean {
  return Math.floor(mode / MODE_DIRECTORY) % 2 === 1
}

function isLink({ mode }: PathStat): boolean {
  return Math.floor(mode / MODE_SYMLINK) % 2 === 1
}

function toRolloutError(error: unknown, path: string): RolloutError {
  if (error instanceof RolloutError) return error
  const reason = error instanceof Error ? error.message : String(error)
  if (error instanceof ContainerEngineError && error.status === 404) {
    if (/no such container|no container with/i.test(reason))
      return new RolloutError('runtime.gone', `The sandbox no longer exists: ${reason}`, { cause: error })
    return new RolloutError('workspace.file-missing', `${path} does not exist in the sandbox`, { cause: error })
  }
  if (/no space left|disk quota/i.test(reason) || errnoOf(error) === 'ENOSPC')
    return new RolloutError('runtime.out-of-disk', `${path}: ${reason}`, { cause: error })
  const code = error instanceof TarError ? 'workspace.unsafe-file' : 'runtime.copy-failed'
  return new RolloutError(code, `Copying ${path} failed: ${reason}`, { cause: error })
}
