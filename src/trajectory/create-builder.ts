import { RolloutError } from '../model/failure.ts'
import type { StrategySpec } from '../model/task.ts'
import type { Builder } from './builders/builder.ts'
import { builders } from './builders/index.ts'
import { loadBuilder } from './builders/load-builder.ts'

/**
 * Creates the builder of a task. `strategy` is the name of a built-in builder or the absolute path of a module that exports
 * `builder`. Throws `config.invalid` that lists every invalid field.
 */
export async function createBuilder(
  { strategy, config }: StrategySpec,
  { allowed }: { allowed: readonly string[] },
): Promise<Builder> {
  if (strategy.includes('/')) return loadBuilder(strategy, { allowed })
  if (!builders.kinds.includes(strategy)) {
    const kinds = builders.kinds.join(', ')
    const message = `builder.strategy: unknown builder "${strategy}". Use ${kinds}, or the absolute path of a module.`
    throw new RolloutError('config.invalid', message)
  }
  const parsed = builders.config.safeParse({ ...config, kind: strategy })
  if (parsed.success) return builders.create(parsed.data, {})
  const problems = parsed.error.issues.map(
    ({ path, message }) => `builder.config${path.map((key) => `.${String(key)}`).join('')}: ${message}`,
  )
  throw new RolloutError('config.invalid', problems.join('\n'))
}
