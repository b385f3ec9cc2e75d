import { access, constants, mkdir } from 'node:fs/promises'
import { RolloutError } from '../model/failure.ts'

/** Creates a folder and checks that it is writable, so that an agent does not work for an hour in vain. */
export async function assertWritable(dir: string, flag = '--out'): Promise<void> {
  try {
    await mkdir(dir, { recursive: true, mode: 0o700 })
    await access(dir, constants.W_OK | constants.X_OK)
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException
    const problem = `The folder ${dir} cannot be written to (${code ?? message}). Choose another folder with ${flag} DIR.`
    throw new RolloutError('config.invalid', problem, { cause: error })
  }
}
