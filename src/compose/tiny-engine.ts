import type * as TinyEngine from '@polar-rl/tiny-engine'
import { RolloutError } from '../model/failure.ts'

/** The package is an optional dependency: machines with a real engine need neither its runtime nor its weights. */
export async function loadTinyEngine(): Promise<typeof TinyEngine> {
  try {
    return await import('@polar-rl/tiny-engine')
  } catch (error) {
    if (!isNotInstalled(error)) throw error
    const message =
      'The tiny engine is not installed. Install it with "npm install @polar-rl/tiny-engine", or use another engine with --engine-url.'
    throw new RolloutError('config.invalid', message, { cause: error })
  }
}

/** Returns the folder of the tiny model without loading the engine. Undefined if the package is not installed. */
export async function findTinyModel(): Promise<string | undefined> {
  try {
    return (await import('@polar-rl/tiny-engine/model-package')).embeddedModelFolder()
  } catch (error) {
    if (!isNotInstalled(error)) throw error
    return undefined
  }
}

function isNotInstalled(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === 'ERR_MODULE_NOT_FOUND'
}

/** Starts the tiny engine. Throws `config.invalid` for options, scripts and files that the engine cannot start with. */
export async function startTinyEngine(options: TinyEngine.EngineOptions): Promise<TinyEngine.Engine> {
  const { EngineSetupError, startEngine } = await loadTinyEngine()
  try {
    return await startEngine(options)
  } catch (error) {
    if (error instanceof EngineSetupError) throw new RolloutError('config.invalid', error.message, { cause: error })
    throw error
  }
}
