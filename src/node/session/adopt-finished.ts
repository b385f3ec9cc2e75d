import { randomUUID } from 'node:crypto'
import { cp, mkdir, open, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileExists } from '../../lib/fs/file-exists.ts'
import type { Logger } from 'pino'
import { SessionFolder, sessionsFolder } from './session-folder.ts'

/** In a folder that was copied: whoever has the copy delivers it. */
const MARK = 'adopted'

/**
 * Copies sessions that ended and were not delivered from folders of earlier processes to ours, where the worker finds
 * them. Nothing is taken away and no lock is asked for: a process that everybody takes for dead may still be there, on
 * another machine, and deliver as well; the server takes a result once. To be called before the node starts. How many.
 */
export async function adoptFinished(earlier: readonly string[], dir: string, logger: Logger): Promise<number> {
  const sessions = sessionsFolder(dir)
  let adopted = 0
  for (const from of earlier) {
    for (const folder of await SessionFolder.all(sessionsFolder(from))) {
      try {
        if (await adoptOne(folder, sessions)) adopted += 1
      } catch (error) {
        // It may have been delivered and set aside while we looked.
        logger.warn({ err: error, folder: folder.path }, 'a session of an earlier process could not be taken over')
      }
    }
  }
  if (adopted > 0) logger.info({ adopted, earlier }, 'sessions that earlier processes could not deliver are taken over')
  return adopted
}

async function adoptOne(folder: SessionFolder, sessions: string): Promise<boolean> {
  const target = join(sessions, folder.id)
  if (!(await folder.hasEnded()) || (await fileExists(join(folder.path, MARK))) || (await fileExists(target)))
    return false
  // Not the name of a session: what is half there is nobody's.
  const draft = join(sessions, `.adopting-${randomUUID()}`)
  await mkdir(sessions, { recursive: true, mode: 0o700 })
  try {
    await cp(folder.path, draft, { recursive: true, verbatimSymlinks: true })
    await rm(join(draft, 'lock'), { force: true })
    await syncAll(draft)
    await rename(draft, target)
    await syncOne(sessions)
  } finally {
    await rm(draft, { recursive: true, force: true })
  }
  // Only now: until then it must be found here by whoever comes next.
  await writeFile(join(folder.path, MARK), `${target}\n`, { mode: 0o600 })
  return true
}

async function syncAll(dir: string): Promise<void> {
  for (const entry of await readdir(dir, { recursive: true, withFileTypes: true })) {
    if (entry.isFile() || entry.isDirectory()) await syncOne(join(entry.parentPath, entry.name))
  }
  await syncOne(dir)
}

async function syncOne(path: string): Promise<void> {
  const handle = await open(path, 'r')
  try {
    await handle.sync()
  } finally {
    await handle.close()
  }
}
