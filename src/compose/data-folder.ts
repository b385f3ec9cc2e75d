import { randomBytes, randomUUID } from 'node:crypto'
import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import * as z from 'zod'
import { errnoOf } from '../lib/fs/errno.ts'
import { linkIfAbsent } from '../lib/fs/link-if-absent.ts'
import { tokenProblem } from '../lib/net/request-tokens.ts'
import { RolloutError } from '../model/failure.ts'

/** Generated tokens, one for each scope, of a server without configured tokens. */
export const OwnTokens = z.strictObject({ trainer: z.string(), node: z.string(), read: z.string() })
export type OwnTokens = z.infer<typeof OwnTokens>

/** URL and process of the server that uses a data folder. */
const ServerNote = z.object({ url: z.string(), pid: z.int() })
export type ServerNote = z.infer<typeof ServerNote>

export function tokensFile(dir: string): string {
  return join(dir, 'tokens.json')
}

export function serverFile(dir: string): string {
  return join(dir, 'server.json')
}

export function nodeFolder(dir: string, nodeId: string): string {
  return join(dir, 'nodes', nodeId)
}

/** Returns the tokens of the folder; generates them on first use. Concurrent callers get the same tokens. */
export async function obtainTokens(dir: string): Promise<OwnTokens> {
  const found = await readTokens(dir)
  if (found !== undefined) return found
  const tokens: OwnTokens = { trainer: mint('trainer'), node: mint('node'), read: mint('read') }
  const isOurs = await createPrivate(tokensFile(dir), `${JSON.stringify(tokens, null, 2)}\n`)
  return isOurs ? tokens : (await readTokens(dir))!
}

/** File of the generated token of a gateway's control API. */
export function controlTokenFile(dir: string): string {
  return join(dir, 'control.token')
}

/**
 * Returns the control token of the folder; generates it on first use, so that it survives a restart. Throws
 * `config.invalid` for a file that other users can read or change.
 */
export async function obtainControlToken(dir: string): Promise<string> {
  const file = controlTokenFile(dir)
  await createPrivate(file, `${mint('control')}\n`)
  if (((await stat(file)).mode & BY_OTHERS) !== 0) {
    const message = `${file}: other users can read or change the control token; run chmod 600 on it, or remove it to get a new token.`
    throw new RolloutError('config.invalid', message)
  }
  const token = (await readFile(file, 'utf8')).trim()
  const problem = tokenProblem(token)
  if (problem === undefined) return token
  throw new RolloutError('config.invalid', `${file}: the control token ${problem}; remove the file to get a new token.`)
}

const BY_OTHERS = 0o077

/** Atomically creates a file that only this user can read. Returns false if the file already exists. */
async function createPrivate(path: string, text: string): Promise<boolean> {
  const draft = join(dirname(path), `.draft-${randomUUID()}`)
  await writeFile(draft, text, { mode: 0o600, flag: 'wx', flush: true })
  try {
    return await linkIfAbsent(draft, path)
  } finally {
    await rm(draft, { force: true })
  }
}

export function readTokens(dir: string): Promise<OwnTokens | undefined> {
  return readJson(tokensFile(dir), OwnTokens)
}

export async function writeServerNote(dir: string, note: ServerNote): Promise<void> {
  const draft = join(dir, `.server-${randomUUID()}`)
  await writeFile(draft, `${JSON.stringify(note)}\n`, { mode: 0o600, flag: 'wx' })
  await rename(draft, serverFile(dir))
}

/** Undefined if no server uses the folder. The note of a killed server remains. */
export function readServerNote(dir: string): Promise<ServerNote | undefined> {
  return readJson(serverFile(dir), ServerNote)
}

/** Does nothing if the note belongs to another process. */
export async function removeServerNote(dir: string, pid: number): Promise<void> {
  const note = await readServerNote(dir).catch(() => undefined)
  if (note?.pid === pid) await rm(serverFile(dir), { force: true })
}

/** The prefix identifies the token and its scope, also for programs that search for leaked tokens. */
function mint(scope: string): string {
  return `polar_${scope}_${randomBytes(24).toString('base64url')}`
}

async function readJson<S extends z.ZodType>(path: string, schema: S): Promise<z.infer<S> | undefined> {
  try {
    return schema.parse(JSON.parse(await readFile(path, 'utf8')))
  } catch (error) {
    if (['ENOENT', 'ENOTDIR'].includes(errnoOf(error) ?? '')) return undefined
    throw new RolloutError('config.invalid', `${path} cannot be used: ${(error as Error).message}`, { cause: error })
  }
}
