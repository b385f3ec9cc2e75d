import { randomBytes, randomUUID } from 'node:crypto'
import { readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import * as z from 'zod'
import { errnoOf } from '../lib/fs/errno.ts'
import { linkIfAbsent } from '../lib/fs/link-if-absent.ts'
import { tokenProblem } from '../lib/net/request-tokens.ts'
import { RolloutError } from '../model/failure.ts'

/** One for each scope, made where nobody configured any. */
export const OwnTokens = z.strictObject({ trainer: z.string(), node: z.string(), read: z.string() })
export type OwnTokens = z.infer<typeof OwnTokens>

/** Where the server with this folder listens, and which process it is. */
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

/** Those of the folder; made on first use. Two that make them at the same time end up with the same. */
export async function obtainTokens(dir: string): Promise<OwnTokens> {
  const found = await readTokens(dir)
  if (found !== undefined) return found
  const tokens: OwnTokens = { trainer: mint('trainer'), node: mint('node'), read: mint('read') }
  const isOurs = await createPrivate(tokensFile(dir), `${JSON.stringify(tokens, null, 2)}\n`)
  return isOurs ? tokens : (await readTokens(dir))!
}

/** Holds the token of a gateway's control API where the operator gives none. */
export function controlTokenFile(dir: string): string {
  return join(dir, 'control.token')
}

/**
 * The token of the control API of a gateway with this folder; made on first use, so that it survives a restart. Throws
 * `config.invalid` for a file that other users can read or change.
 */
export async function obtainControlToken(dir: string): Promise<string> {
  const file = controlTokenFile(dir)
  await createPrivate(file, `${mint('control')}\n`)
  if (((await stat(file)).mode & BY_OTHERS) !== 0) {
    const message = `${file}: other users can read or change the control token; run chmod 600 on it, or remove it for a new one.`
    throw new RolloutError('config.invalid', message)
  }
  const token = (await readFile(file, 'utf8')).trim()
  const problem = tokenProblem(token)
  if (problem === undefined) return token
  throw new RolloutError('config.invalid', `${file}: the control token ${problem}; remove the file for a new one.`)
}

const BY_OTHERS = 0o077

/** Writes a file that only this user can read, unless it exists; returns whether it did. Never leaves a part of one. */
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

/** Undefined: no server has this folder, or none that ended in order. */
export function readServerNote(dir: string): Promise<ServerNote | undefined> {
  return readJson(serverFile(dir), ServerNote)
}

/** Unless another server has taken its place. */
export async function removeServerNote(dir: string, pid: number): Promise<void> {
  const note = await readServerNote(dir).catch(() => undefined)
  if (note?.pid === pid) await rm(serverFile(dir), { force: true })
}

/** The scope in it tells a person, and whoever searches logs for leaked ones, what it is. */
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
