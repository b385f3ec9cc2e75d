import { existsSync } from 'node:fs'
import { basename, dirname, resolve } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'

/** A session as people name it: its id, its folder, or "last". */
export async function resolveSession(name: string, dir: string): Promise<{ dir: string; id: string }> {
  if (name.includes('/') && existsSync(name)) {
    const path = resolve(name)
    return { dir: dirname(path), id: basename(path) }
  }
  const ids = await createCallLogReader({ dir }).list()
  const id = name === 'last' ? ids.at(-1) : ids.find((candidate) => candidate === name)
  if (id !== undefined) return { dir, id }
  const hint = ids.length === 0 ? 'There is none there; is --out right?' : `The newest is ${ids.at(-1)}.`
  throw new RolloutError('config.invalid', `No session "${name}" in ${dir}. ${hint}`)
}
