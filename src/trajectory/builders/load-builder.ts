import { pathToFileURL } from 'node:url'
import { RolloutError } from '../../model/failure.ts'
import type { Builder } from './builder.ts'

/**
 * A builder from a module of the user's: it exports `builder`. A module may do anything this process may, so its absolute
 * path must be on the list of those that were allowed beforehand.
 */
export async function loadBuilder(path: string, { allowed }: { allowed: readonly string[] }): Promise<Builder> {
  if (!allowed.includes(path)) {
    throw invalid(`Builder module ${path} is not on the list of allowed modules. Add it there to trust its code.`)
  }
  const found = await load(path)
  if (!isBuilder(found)) {
    throw invalid(`${path} must export "builder", an object with a name and a function plan(graph, mayTrain).`)
  }
  return found
}

async function load(path: string): Promise<unknown> {
  try {
    const module = (await import(pathToFileURL(path).href)) as { builder?: unknown }
    return module.builder
  } catch (error) {
    throw invalid(
      `Builder module ${path} cannot be loaded: ${error instanceof Error ? error.message : String(error)}.`,
      {
        cause: error,
      },
    )
  }
}

function isBuilder(value: unknown): value is Builder {
  if (typeof value !== 'object' || value === null) return false
  const { name, plan } = value as Partial<Record<keyof Builder, unknown>>
  return typeof name === 'string' && name !== '' && typeof plan === 'function'
}

function invalid(message: string, options?: { cause: unknown }): RolloutError {
  return new RolloutError('config.invalid', message, options)
}
