import { lacksFields, loadExport } from '../../lib/process/load-module.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Builder } from './builder.ts'

/**
 * Loads the builder that a user's module exports as `builder`. The module runs with all rights of this process, so its real
 * path must be in `allowed`. Throws RolloutError `config.invalid`.
 */
export async function loadBuilder(path: string, { allowed }: { allowed: readonly string[] }): Promise<Builder> {
  const lacks = (value: unknown): string[] => lacksFields(value, { name: 'string', plan: 'function' })
  const loaded = await loadExport(path, { what: 'Builder', name: 'builder', lacks, allowed })
  if ('value' in loaded) return loaded.value as Builder
  throw new RolloutError('config.invalid', loaded.problem, { cause: loaded.cause })
}
