import type * as z from 'zod'
import { RolloutError } from '../model/failure.ts'
import type { StrategySpec } from '../model/task.ts'
import type { Evaluator, EvaluatorDeps, EvaluatorPlug } from './evaluators/evaluator.ts'
import { evaluators, evaluatorsWith } from './evaluators/index.ts'
import { loadPlug } from './load-plug.ts'

export interface CreateEvaluatorOptions {
  /** Real paths of the modules that the operator trusts. */
  allowed: readonly string[]
  deps: EvaluatorDeps
}

/**
 * Creates the evaluator of a task. `strategy`, also of the parts of a `weighted`, is the name of a built-in evaluator or the
 * absolute path of a module that exports `evaluator`, a plug. Throws `config.invalid` that lists every invalid field.
 */
export async function createEvaluator(spec: StrategySpec, options: CreateEvaluatorOptions): Promise<Evaluator> {
  const modules = new Map<string, EvaluatorPlug>()
  const expected = { what: 'Evaluator', name: 'evaluator', allowed: options.allowed }
  for (const path of evaluatorModules(spec)) modules.set(path, await loadPlug(path, expected))
  assertDistinct(modules)
  const registry = modules.size === 0 ? evaluators : evaluatorsWith([...modules.values()])
  const parsed = registry.config.safeParse(toConfig(spec, modules))
  if (parsed.success) return registry.create(parsed.data, options.deps)
  throw new RolloutError('config.invalid', describe(parsed.error, spec, registry.kinds))
}

/** Names of built-in evaluators contain no slash. */
function isModule(strategy: string): boolean {
  return strategy.includes('/')
}

/** Returns the module paths of a spec, including those of the parts of a `weighted`. */
export function evaluatorModules({ strategy, config }: StrategySpec): Set<string> {
  const parts = strategy === 'weighted' && Array.isArray(config['parts']) ? (config['parts'] as unknown[]) : []
  return new Set([strategy, ...parts.map(strategyOf)].filter(isModule))
}

function strategyOf(part: unknown): string {
  const { strategy } = (part ?? {}) as { strategy?: unknown }
  return typeof strategy === 'string' ? strategy : ''
}

function assertDistinct(modules: ReadonlyMap<string, EvaluatorPlug>): void {
  const taken = new Set(evaluators.kinds)
  for (const [path, plug] of modules) {
    const kind = plug.config.shape.kind.value
    if (taken.has(kind)) {
      throw new RolloutError(
        'config.invalid',
        `Evaluator module ${path}: kind "${kind}" is taken. Choose another kind.`,
      )
    }
    taken.add(kind)
  }
}

function toConfig({ strategy, config }: StrategySpec, modules: ReadonlyMap<string, EvaluatorPlug>): unknown {
  const kindOf = (name: string) => modules.get(name)?.config.shape.kind.value ?? name
  const parts = config['parts']
  const named =
    strategy === 'weighted' && Array.isArray(parts)
      ? { parts: parts.map((part: unknown) => ({ ...(part as object), strategy: kindOf(strategyOf(part)) })) }
      : {}
  return { ...config, ...named, kind: kindOf(strategy) }
}

function describe(error: z.ZodError, { strategy }: StrategySpec, kinds: readonly string[]): string {
  if (!isModule(strategy) && !kinds.includes(strategy)) {
    return `evaluator.strategy: unknown evaluator "${strategy}". Use ${kinds.join(', ')}, or the absolute path of a module.`
  }
  const problems = error.issues.map(
    ({ path, message }) => `evaluator.config${path.map((key) => `.${String(key)}`).join('')}: ${message}`,
  )
  return problems.join('\n')
}
