import { RolloutError } from '../../model/failure.ts'

/** A variable in Harbor's notation: ${NAME} or ${NAME:-default}. */
const TEMPLATE = /^\$\{([^}:]+)(?::-(.*))?\}$/s

/** Replaces variables by their values. Throws `config.invalid` with all missing variables. */
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
  throw new RolloutError(
    'config.invalid',
    `The tests need the variables ${missing.join(', ')}. Set them as secrets of this node.`,
  )
}
