import { RolloutError } from '../model/failure.ts'
import type { StrategySpec } from '../model/task.ts'
import type { Builder } from './builders/builder.ts'
import { builders } from './builders/index.ts'
import { loadBuilder } from './builders/load-builder.ts'

/**
 * The builder a task asks for. `strategy` is the name of one of ours, or the absolute path of a module. Throws
 * `config.invalid` that names every place at fault.
 */
export async function createBuilder(
  { strategy, config }: StrategySpec,
  { allowed }: { allowed: readonly string[] },
): Promise<Builder> {
  if (strategy.includes('/')) return loadBuilder(strategy, { allowed })
  if (!builders.kinds.includes(strategy)) {
    const kinds = builders.kinds.join(', ')
    const message = `builder.strategy: "${strategy}" is none of ${kinds}, nor the absolute path of a module.`
    throw new RolloutError('config.invalid', message)
  }
  const parsed = builders.config.safeParse({ ...config, kind: strategy })
  if (parsed.success) return builders.create(parsed.data, {})
  const problems = parsed.error.issues.map(
    ({ path, message }) => `builder.config${path.map((key) => `.${String(key)}`).join('')}: ${message}`,
  )
  throw new RolloutError('config.invalid', problems.join('\n'))
}
