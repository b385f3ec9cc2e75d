import { readdir, rm, rmdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { unless } from './disk.ts'

/** Asked for at once; a question to the database costs about the same for one and for hundreds. */
const PATHS_AT_ONCE = 500

/** Uploads that nobody added to since, markers of old ones, and what a crash left half made. Counts the uploads. */
export async function sweepUploads(dir: string, before: number): Promise<number> {
  let swept = 0
  for await (const node of foldersIn(dir, 'uploads')) {
    for (const name of await namesIn(dir, node)) {
      if (!(await isUntouched(join(dir, node, name), before))) continue
      await rm(join(dir, node, name), { recursive: true, force: true })
      swept += 1
    }
    await rmdir(join(dir, node)).catch(unless('ENOTEMPTY', 'ENOENT', 'EEXIST'))
  }
  for await (const folder of foldersIn(dir, 'kept')) {
    await removeOld(dir, folder, before)
    await rmdir(join(dir, folder)).catch(unless('ENOTEMPTY', 'ENOENT', 'EEXIST'))
  }
  await removeOld(dir, 'tmp', before)
  return swept
}

/** Kept files that are old and that nobody knows: of attempts that were refused after all their bytes had come. */
export async function sweepUnknown(
  dir: string,
  before: number,
  isKnown: (paths: readonly string[]) => Promise<ReadonlySet<string>>,
): Promise<number> {
  let swept = 0
  let old: string[] = []
  const judge = async (): Promise<void> => {
    const known = await isKnown(old)
    for (const path of old) {
      // Looked at again: it may be wanted since, by somebody whom the answer does not know of yet.
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
      if (old.length >= PATHS_AT_ONCE) await judge()
    }
  }
  if (old.length > 0) await judge()
  return swept
}

async function removeOld(dir: string, folder: string, before: number): Promise<void> {
  for (const name of await namesIn(dir, folder)) {
    const path = join(dir, folder, name)
    if (await isOlder(path, before)) await rm(path, { recursive: true, force: true })
  }
}

/** A folder does not change when a file in it grows. */
async function isUntouched(folder: string, before: number): Promise<boolean> {
  const names = (await readdir(folder).catch(unless('ENOENT'))) ?? []
  for (const path of [folder, ...names.map((name) => join(folder, name))]) {
    if (!(await isOlder(path, before))) return false
  }
  return true
}

/** By its last change of any kind, a new name included. */
async function isOlder(path: string, before: number): Promise<boolean> {
  const found = await stat(path).catch(unless('ENOENT'))
  return found === undefined || Math.max(found.mtimeMs, found.ctimeMs) < before
}

async function* foldersIn(dir: string, folder: string): AsyncGenerator<string> {
  for (const name of await namesIn(dir, folder)) yield `${folder}/${name}`
}

async function namesIn(dir: string, folder: string): Promise<string[]> {
  return (await readdir(join(dir, folder)).catch(unless('ENOENT', 'ENOTDIR'))) ?? []
}

async function* filesBelow(dir: string, folder: string): AsyncGenerator<string> {
  const entries = await readdir(join(dir, folder), { withFileTypes: true }).catch(unless('ENOENT'))
  for (const entry of entries ?? []) {
    const path = `${folder}/${entry.name}`
    if (entry.isDirectory()) yield* filesBelow(dir, path)
    else if (entry.isFile()) yield path
  }
}
