import { existsSync } from 'node:fs'
import { basename, dirname, join, resolve } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { option } from '../command.ts'

/** Folder that `polar record` and `polar gateway` write by default. */
export const DEFAULT_OUT = join('.polar', 'sessions')

/** Flag of the commands that read sessions. */
export const FROM_FLAG = option('DIR', 'Folder of recorded sessions', { formerly: 'out', default: DEFAULT_OUT })

export const TOKENIZER_FLAG = option(
  'DIR',
  "Folder with the model's tokenizer.json, to read tokens; the tiny model's is built in",
)

/** Finds a session by its id, its folder, or "last". */
export async function resolveSession(name: string, dir: string): Promise<{ dir: string; id: string }> {
  if (name.includes('/') && existsSync(name)) {
    const path = resolve(name)
    return { dir: dirname(path), id: basename(path) }
  }
  const ids = await createCallLogReader({ dir }).list()
  const id = name === 'last' ? ids.at(-1) : ids.find((candidate) => candidate === name)
  if (id !== undefined) return { dir, id }
  const hint = ids.length === 0 ? 'The folder has no sessions; check --from.' : `The newest is ${ids.at(-1)}.`
  throw new RolloutError('config.invalid', `No session "${name}" in ${dir}. ${hint}`)
}
