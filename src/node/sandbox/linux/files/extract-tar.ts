import { constants, type Stats } from 'node:fs'
import { chmod, link, lstat, mkdir, open, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { errnoOf, ignoreErrno } from '../../../../lib/fs/errno.ts'
import { readTar, TarError, type TarEntry } from '../../../../lib/archive/tar-reader.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { CopyLimits } from '../../runtimes/runtime.ts'

const { O_CREAT, O_EXCL, O_NOFOLLOW, O_WRONLY } = constants

/**
 * Extracts an archive of a hostile program to `target`, which must not exist. Writes only below entries of this
 * archive: every parent is a directory of the archive, every file is new, and a hard link points to a file of the
 * archive. Symbolic links are copied and never followed; readers of the copy must not follow them either. The caller
 * removes `target` when this throws.
 */
export async function extractTar(source: AsyncIterable<Uint8Array>, target: string, limits: CopyLimits): Promise<void> {
  const made = new Map<string, 'directory' | 'file' | 'link'>()
  /** Set at the end, because entries of a read-only directory must still be written. */
  const directoryModes = new Map<string, number>()
  let bytes = 0
  let file: Awaited<ReturnType<typeof open>> | undefined
  try {
    for await (const part of readTar(source)) {
      if ('data' in part) {
        await file?.writeFile(part.data)
        continue
      }
      await file?.close()
      file = undefined
      const { entry } = part
      bytes += entry.size
      if (bytes > limits.maxBytes) throw tooMuch(`more than ${limits.maxBytes} bytes`)
      if (made.size >= limits.maxFiles) throw tooMuch(`more than ${limits.maxFiles} files`)
      file = await place(entry)
    }
  } catch (error) {
    if (error instanceof TarError) throw unsafe(error.message, error)
    if (errnoOf(error) === 'EEXIST') throw unsafe('two entries of the archive have the same name', error)
    if (errnoOf(error) === 'ENAMETOOLONG') throw unsafe('a path exceeds the length limit of this machine', error)
    throw error
  } finally {
    await file?.close()
  }
  for (const [path, mode] of [...directoryModes].toReversed()) await chmod(path, mode)
  if (made.size === 0) throw new RolloutError('runtime.copy-failed', 'The sandbox sent an empty archive')

  async function place(entry: TarEntry): Promise<Awaited<ReturnType<typeof open>> | undefined> {
    const name = toName(entry.name)
    const path = name === '' ? target : join(target, name)
    const parent = name.includes('/') ? name.slice(0, name.lastIndexOf('/')) : ''
    if (name === '' ? made.size > 0 && entry.kind !== 'directory' : made.get(parent) !== 'directory')
      throw unsafe(`the parent of ${quote(entry.name)} is no directory of the archive`)
    // Owner and group are not kept, so the setuid, setgid and sticky bits are dropped.
    const mode = entry.mode & 0o777
    switch (entry.kind) {
      case 'directory':
        if (made.get(name) === 'directory') return undefined
        await mkdir(path, { mode: 0o700 })
        made.set(name, 'directory')
        directoryModes.set(path, mode)
        return undefined
      case 'file': {
        const handle = await open(path, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY, 0o600)
        made.set(name, 'file')
        await handle.chmod(mode)
        return handle
      }
      case 'symlink':
        await symlink(entry.target, path)
        made.set(name, 'link')
        return undefined
      case 'hardlink': {
        const original = toName(entry.target)
        if (made.get(original) !== 'file') throw unsafe(`${quote(entry.name)} is a hard link to no file of the archive`)
        await link(join(target, original), path)
        made.set(name, 'file')
        return undefined
      }
      case 'special':
        throw unsafe(`${quote(entry.name)} is a device or a pipe`)
    }
  }
}

/**
 * Returns the path below the archive's single root entry, whose own path is empty and whose name is ignored. Throws for
 * a path that leaves the root entry.
 */
function toName(name: string): string {
  if (name.startsWith('/') || name.includes('\0')) throw unsafe(`${quote(name)} leaves the archive's root`)
  const parts = name.split('/').filter((part) => part !== '' && part !== '.')
  if (parts.includes('..')) throw unsafe(`${quote(name)} leaves the archive's root`)
  return parts.slice(1).join('/')
}

/** Returns undefined if the path does not exist. */
export async function lstatIfThere(path: string): Promise<Stats | undefined> {
  return lstat(path).catch(ignoreErrno('ENOENT'))
}

function unsafe(message: string, cause?: unknown): RolloutError {
  return new RolloutError('workspace.unsafe-file', `Rejected a copy from the sandbox: ${message}`, { cause })
}

function tooMuch(what: string): RolloutError {
  return new RolloutError('workspace.too-large', `Rejected a copy from the sandbox: ${what}`)
}

function quote(name: string): string {
  return JSON.stringify(name.length > 200 ? `${name.slice(0, 200)}…` : name)
}
