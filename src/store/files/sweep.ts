import { readdir, rm, rmdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { ignoreErrno } from '../../lib/fs/errno.ts'

/** Paths per query: a query costs about the same for one path and for hundreds. */
const MAX_BATCH = 500

/** Removes uploads without progress since `before`, old markers, and temporary files of crashes. Returns the number of uploads. */
export async function sweepUploads(dir: string, before: number): Promise<number> {
  let swept = 0
  for await (const node of foldersIn(dir, 'uploads')) {
    for (const name of await namesIn(dir, node)) {
      if (!(await isUntouched(join(dir, node, name), before))) continue
      await rm(join(dir, node, name), { recursive: true, force: true })
      swept += 1
    }
    await rmdir(join(dir, node)).catch(ignoreErrno('ENOTEMPTY', 'ENOENT', 'EEXIST'))
  }
  for await (const folder of foldersIn(dir, 'kept')) {
    await removeOld(dir, folder, before)
    await rmdir(join(dir, folder)).catch(ignoreErrno('ENOTEMPTY', 'ENOENT', 'EEXIST'))
  }
  await removeOld(dir, 'tmp', before)
  return swept
}

/** Removes old files without a row: those of attempts that were refused after their upload. */
export async function sweepUnknown(
  dir: string,
  before: number,
  findKnown: (paths: readonly string[]) => Promise<ReadonlySet<string>>,
): Promise<number> {
  let swept = 0
  let old: string[] = []
  const removeBatch = async (): Promise<void> => {
    const known = await findKnown(old)
    for (const path of old) {
      // Checked again: `keep` may have touched the file since, before its row was written.
      if (known.has(path) || !(await isOlder(join(dir, path), before))) continue
      await rm(join(dir, path), { force: true })
      swept += 1
    }
    old = []
  }
  for (const top of ['results', 'artifacts']) {
    for await (const path of filesBelow(dir, top)) {
      if (!(await isOlder(join(dir, path), before))) continue
      old.push(path)
      if (old.length >= MAX_BATCH) await removeBatch()
    }
  }
  if (old.length > 0) await removeBatch()
  return swept
}

async function removeOld(dir: string, folder: string, before: number): Promise<void> {
  for (const name of await namesIn(dir, folder)) {
    const path = join(dir, folder, name)
    if (await isOlder(path, before)) await rm(path, { recursive: true, force: true })
  }
}

/** Checks the files too: a folder's time does not change when a file in it grows. */
async function isUntouched(folder: string, before: number): Promise<boolean> {
  const names = (await readdir(folder).catch(ignoreErrno('ENOENT'))) ?? []
  for (const path of [folder, ...names.map((name) => join(folder, name))]) {
    if (!(await isOlder(path, before))) return false
  }
  return true
}

/** By the last change of content or metadata. */
async function isOlder(path: string, before: number): Promise<boolean> {
  const found = await stat(path).catch(ignoreErrno('ENOENT'))
  return found === undefined || Math.max(found.mtimeMs, found.ctimeMs) < before
}

async function* foldersIn(dir: string, folder: string): AsyncGenerator<string> {
  for (const name of await namesIn(dir, folder)) yield `${folder}/${name}`
}

async function namesIn(dir: string, folder: string): Promise<string[]> {
  return (await readdir(join(dir, folder)).catch(ignoreErrno('ENOENT', 'ENOTDIR'))) ?? []
}

async function* filesBelow(dir: string, folder: string): AsyncGenerator<string> {
  const entries = await readdir(join(dir, folder), { withFileTypes: true }).catch(ignoreErrno('ENOENT'))
  for (const entry of entries ?? []) {
    const path = `${folder}/${entry.name}`
    if (entry.isDirectory()) yield* filesBelow(dir, path)
    else if (entry.isFile()) yield path
  }
}
