import { RolloutError } from '../../model/failure.ts'

/** A value that stands for a variable, as Harbor writes it: ${NAME}, or ${NAME:-what else}. */
const TEMPLATE = /^\$\{([^}:]+)(?::-(.*))?\}$/s

/** The values with those that stand for others looked up. Throws `config.invalid` with all that cannot be. */
export function resolveTemplates(
  values: Readonly<Record<string, string>>,
  lookUp: (name: string) => string | undefined,
): Record<string, string> {
  const missing: string[] = []
  const resolved = Object.entries(values).map(([key, text]) => {
    const [, name, fallback] = TEMPLATE.exec(text) ?? []
    if (name === undefined) return [key, text] as const
    const value = lookUp(name) ?? fallback
    if (value === undefined) missing.push(name)
    return [key, value ?? ''] as const
  })
  if (missing.length === 0) return Object.fromEntries(resolved)
  throw new RolloutError('config.invalid', `The tests want ${missing.join(', ')}, which this node was not given.`)
}
