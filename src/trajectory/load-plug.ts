import type { KindSchema, Plug } from '../lib/plug.ts'
import { lacksFields, loadExport } from '../lib/process/load-module.ts'
import { RolloutError } from '../model/failure.ts'

interface PlugExport {
  /** Subject of error messages: `Evaluator`. */
  what: string
  /** Name of the export. */
  name: string
  /** Real paths of the modules that the operator trusts. */
  allowed: readonly string[]
}

/**
 * Loads the plug that a user's module exports. The module runs with all rights of this process, so its real path must be in
 * `allowed`. Throws RolloutError `config.invalid`.
 */
export async function loadPlug<Deps, Instance>(
  path: string,
  expected: PlugExport,
): Promise<Plug<KindSchema, Deps, Instance>> {
  const loaded = await loadExport(path, { ...expected, lacks })
  if ('value' in loaded) return loaded.value as Plug<KindSchema, Deps, Instance>
  throw new RolloutError('config.invalid', loaded.problem, { cause: loaded.cause })
}

function lacks(value: unknown): string[] {
  const missing = lacksFields(value, { config: 'object', create: 'function' })
  if (missing.length > 0) return missing
  const { config } = value as { config: { shape?: { kind?: { value?: unknown } } } }
  if (typeof config.shape?.kind?.value === 'string' && lacksFields(config, { safeParse: 'function' }).length === 0)
    return []
  return ["config, a zod object with kind: z.literal('<its name>')"]
}
