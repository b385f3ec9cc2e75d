import { lacksFields, loadExport } from '../../lib/process/load-module.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Builder } from './builder.ts'

/**
 * A builder from a module of the user's: it exports `builder`. A module may do anything this process may, so its real path
 * must be on the list of those that were allowed beforehand. Throws RolloutError `config.invalid`.
 */
export async function loadBuilder(path: string, { allowed }: { allowed: readonly string[] }): Promise<Builder> {
  const lacks = (value: unknown): string[] => lacksFields(value, { name: 'string', plan: 'function' })
  const loaded = await loadExport(path, { what: 'Builder', name: 'builder', lacks, allowed })
  if ('value' in loaded) return loaded.value as Builder
  throw new RolloutError('config.invalid', loaded.problem, { cause: loaded.cause })
}
