import { createHash } from 'node:crypto'
import { cpSync } from 'node:fs'
import { mkdir, mkdtemp, readFile, rename, rm, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { openDatabase } from '../../src/store/database.ts'

const root = dirname(dirname(import.meta.dirname))

/**
 * Creates an empty embedded database with all tables in a folder. Opening a copy takes a third of the time of PostgreSQL's
 * initdb and the migrations.
 */
export async function copyDatabase(dir: string): Promise<void> {
  template ??= prepareTemplate()
  await mkdir(dir, { recursive: true, mode: 0o700 })
  // A thousand small files: cp() of node:fs/promises takes five times the CPU time of cpSync().
  cpSync(join(await template, 'pglite'), join(dir, 'pglite'), { recursive: true })
}

let template: Promise<string> | undefined

async function prepareTemplate(): Promise<string> {
  const sources = ['src/store/database/migrations.ts', 'node_modules/@electric-sql/pglite/package.json']
  const digest = createHash('sha256')
  for (const source of sources) digest.update(await readFile(join(root, source)))
  const cache = join(root, '.polar/test-database')
  const place = join(cache, digest.digest('hex').slice(0, 16))
  if ((await stat(place).catch(() => undefined)) !== undefined) return place
  await mkdir(cache, { recursive: true })
  const draft = await mkdtemp(join(cache, 'draft-'))
  await (await openDatabase({ dir: draft }))[Symbol.asyncDispose]()
  // Several test files may do this at the same time: the first to rename its folder wins.
  await rename(draft, place).catch(() => rm(draft, { recursive: true, force: true }))
  return place
}
