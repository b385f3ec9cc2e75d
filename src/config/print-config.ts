import { Document, isCollection, isMap, isScalar, type Scalar, type YAMLMap } from 'yaml'
import type { LoadedConfig, Origin } from './load-config.ts'
import { redact } from './redact.ts'

/** Renders the effective configuration as a config file. Only redacted URLs differ from the source. */
export function printConfig({ config, origins }: LoadedConfig, options: { withOrigins?: boolean } = {}): string {
  const document = new Document(redact(config))
  if (isMap(document.contents)) shape(document.contents, [], options.withOrigins ? origins : undefined)
  return document.toString({ lineWidth: 0, flowCollectionPadding: false })
}

/** Prints lists of scalars on one line, and the origin of each value as a comment. */
function shape(map: YAMLMap, path: readonly string[], origins: ReadonlyMap<string, Origin> | undefined): void {
  for (const { key, value } of map.items) {
    const at = [...path, String(isScalar(key) ? key.value : key)]
    const origin = origins?.get(at.join('.'))
    if (isMap(value) && value.items.length > 0 && origin === undefined) {
      shape(value, at, origins)
      continue
    }
    const isShort = isCollection(value) && value.items.every((item) => isScalar(item))
    if (isShort) value.flow = true
    if (origins === undefined) continue
    const comment = ` ${describeOrigin(origin)}`
    if (isScalar(value) || isShort) value.comment = comment
    else (key as Scalar).commentBefore = comment
  }
}

export function describeOrigin(origin: Origin | undefined): string {
  switch (origin?.kind) {
    case undefined:
    case 'default':
      return 'default'
    case 'flag':
    case 'environment':
      return origin.name
    case 'file':
      return `${origin.name}:${origin.line}`
  }
}

/** The effective configuration as JSON, with the origin of each value by path. */
export function toJsonConfig({ config, file, origins }: LoadedConfig): object {
  return {
    file: file ?? null,
    config: redact(config),
    origins: Object.fromEntries([...origins].map(([path, origin]) => [path, origin])),
  }
}
