import type * as z from 'zod'
import { lacksFields } from '../lib/process/load-module.ts'
import { RolloutError } from '../model/failure.ts'
import type { Exporter } from './exporters/exporter.ts'
import { exporters } from './exporters/index.ts'
import { describeIssues } from './grading/describe-issues.ts'
import { loadPlug } from './load-plug.ts'

export interface ExporterSpec {
  /** Name of a built-in exporter, or the absolute path of a module that exports `exporter`, a plug. */
  format: string
  config: Readonly<Record<string, unknown>>
}

/** Whether a format is the path of a module. Names of built-in exporters contain no slash. */
export function isExporterModule(format: string): boolean {
  return format.includes('/')
}

/** Creates an exporter. Throws RolloutError `config.invalid` that lists every invalid option. */
export async function createExporter(
  spec: ExporterSpec,
  { allowed }: { allowed: readonly string[] },
): Promise<Exporter> {
  const { format } = spec
  if (isExporterModule(format)) {
    const plug = await loadPlug<object, Exporter>(format, { what: 'Exporter', name: 'exporter', allowed })
    return assertExporter(format, create(plug, plug.config.shape.kind.value, spec))
  }
  if (exporters.kinds.includes(format)) return create(exporters, format, spec)
  const kinds = exporters.kinds.join(', ')
  const message = `Unknown format "${format}". Use ${kinds}, or the path of a module such as ./my-format.ts.`
  throw new RolloutError('config.invalid', message)
}

interface ExporterFactory {
  config: z.ZodType
  create(config: unknown, deps: object): Exporter
}

function create(factory: ExporterFactory, kind: string, { format, config }: ExporterSpec): Exporter {
  const parsed = factory.config.safeParse({ ...config, kind })
  if (parsed.success) return factory.create(parsed.data, {})
  throw new RolloutError('config.invalid', `Invalid options of format ${format}: ${describeIssues(parsed.error)}`)
}

function assertExporter(format: string, exporter: Exporter): Exporter {
  const fields = { name: 'string', extension: 'string', isAppendable: 'boolean', open: 'function' } as const
  const missing = lacksFields(exporter, fields)
  if (missing.length === 0) return exporter
  const message = `Exporter module ${format}: the return value of create() lacks ${missing.join(', ')}.`
  throw new RolloutError('config.invalid', message)
}
