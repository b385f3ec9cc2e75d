import { readFile } from 'node:fs/promises'
import { RolloutError } from '../model/failure.ts'
import { orInvalid } from './or-invalid.ts'

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
  const { file } = source
  if (file === undefined) return undefined
  const text = await orInvalid(`${what}_file: ${file} cannot be read`, () => readFile(file, 'utf8'))
  if (text.trim() !== '') return text.trim()
  throw new RolloutError('config.invalid', `${what}_file: ${file} is empty.`)
}
