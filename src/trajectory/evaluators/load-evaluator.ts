import { lacksFields, loadExport } from '../../lib/process/load-module.ts'
import type { KindSchema, Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Evaluator, EvaluatorDeps } from './evaluator.ts'

/**
 * An evaluator from a module of the user's: it exports `evaluator`, a plug. A module may do anything this process may, so
 * its real path must be on the list of those that were allowed beforehand. Throws RolloutError `config.invalid`.
 */
export async function loadEvaluator(path: string, { allowed }: { allowed: readonly string[] }): Promise<EvaluatorPlug> {
  const loaded = await loadExport(path, { what: 'Evaluator', name: 'evaluator', lacks, allowed })
  if ('value' in loaded) return loaded.value as EvaluatorPlug
  throw new RolloutError('config.invalid', loaded.problem, { cause: loaded.cause })
}

/** As far as a registry needs to know it. */
export type EvaluatorPlug = Plug<KindSchema, EvaluatorDeps, Evaluator>

function lacks(value: unknown): string[] {
  const missing = lacksFields(value, { config: 'object', create: 'function' })
  if (missing.length > 0) return missing
  const { config } = value as { config: { shape?: { kind?: { value?: unknown } } } }
  if (typeof config.shape?.kind?.value === 'string' && lacksFields(config, { safeParse: 'function' }).length === 0)
    return []
  return ["config, a zod object with kind: z.literal('<its name>')"]
}
