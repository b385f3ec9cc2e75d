import { randomUUID } from 'node:crypto'
import { cp, mkdir, open, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileExists } from '../../lib/fs/file-exists.ts'
import type { Logger } from 'pino'
import { SessionFolder, sessionsFolder } from './session-folder.ts'

/** Marks a folder that was copied: the owner of the copy delivers the session. */
const MARK = 'adopted'

/**
 * Copies ended, undelivered sessions from the folders of earlier node processes to `dir`, where the worker delivers them,
 * and returns their number. Call it before the node starts. It removes nothing and takes no lock: an earlier process that
 * seems dead may still run on another machine and deliver as well; the server accepts a result once.
 */
export async function adoptFinished(earlier: readonly string[], dir: string, logger: Logger): Promise<number> {
  const sessions = sessionsFolder(dir)
  let adopted = 0
  for (const from of earlier) {
    for (const folder of await SessionFolder.all(sessionsFolder(from))) {
      try {
        if (await copySession(folder, sessions)) adopted += 1
      } catch (error) {
        // The earlier process may have delivered and moved the session meanwhile.
        logger.warn({ err: error, folder: folder.path }, 'a session of an earlier process could not be copied')
      }
    }
  }
  if (adopted > 0) logger.info({ adopted, earlier }, 'copied undelivered sessions of earlier processes')
  return adopted
}

async function copySession(folder: SessionFolder, sessions: string): Promise<boolean> {
  const target = join(sessions, folder.id)
  if (!(await folder.hasEnded()) || (await fileExists(join(folder.path, MARK))) || (await fileExists(target)))
    return false
  // A name that is not a session id: an incomplete copy is not a session.
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
  // Written last: after a crash the next process must find and copy the session again.
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
