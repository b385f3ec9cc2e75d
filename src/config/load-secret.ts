import { readFile } from 'node:fs/promises'
import { RolloutError } from '../model/failure.ts'

/**
 * Loads a secret from the configured file or variable; undefined if neither is configured. `what` is the config key that
 * messages begin with, such as `node.token`. Throws `config.invalid` if the file or variable is missing or empty.
 */
export async function loadSecret(
  what: string,
  source: { file: string | undefined; env: string | undefined },
  env: Readonly<Record<string, string | undefined>>,
): Promise<string | undefined> {
  if (source.env !== undefined) {
    const value = env[source.env]?.trim()
    if (value) return value
    throw new RolloutError('config.invalid', `${what}_env: the environment variable ${source.env} is not set.`)
  }
  if (source.file === undefined) return undefined
  const text = await readFile(source.file, 'utf8').catch((error: unknown) => {
    const message = `${what}_file: ${source.file} cannot be read: ${(error as Error).message}`
    throw new RolloutError('config.invalid', message, { cause: error })
  })
  const value = text.trim()
  if (value !== '') return value
  throw new RolloutError('config.invalid', `${what}_file: ${source.file} is empty.`)
}
