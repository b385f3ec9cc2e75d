import { RolloutError } from '../model/failure.ts'

/** Returns the result of `work`. An error becomes `config.invalid` with the message `problem: error`. */
export async function orInvalid<T>(problem: string, work: () => T | Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error)
    throw new RolloutError('config.invalid', `${problem}: ${why}`, { cause: error })
  }
}
