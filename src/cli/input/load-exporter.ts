import { resolve } from 'node:path'
import { allowModules } from '../../lib/process/load-module.ts'
import { createExporter, isExporterModule } from '../../trajectory/create-exporter.ts'
import type { Exporter } from '../../trajectory/exporters/exporter.ts'
import { usageError } from '../command.ts'

/** Creates the exporter that the flags of a command name. `settings` is a list of KEY=VALUE, separated by commas. */
export async function loadExporter(command: string, format: string, settings: string): Promise<Exporter> {
  const pairs = settings.split(',').filter((pair) => pair.trim() !== '')
  const options = pairs.map((pair): [string, unknown] => {
    const [, key, value] = /^\s*(\w+)\s*=\s*(.*?)\s*$/.exec(pair) ?? []
    if (key === undefined || value === undefined) {
      throw usageError(command, `options of a format are KEY=VALUE, not "${pair}"`)
    }
    return [key, toOption(value)]
  })
  const config = Object.fromEntries(options)
  if (!isExporterModule(format)) return createExporter({ format, config }, { allowed: [] })
  // The user who runs this command may run any code, so the module that the flag names is allowed, and no other.
  const path = resolve(format)
  return createExporter({ format: path, config }, { allowed: await allowModules([path]) })
}

function toOption(text: string): unknown {
  if (text === 'true' || text === 'false') return text === 'true'
  return text !== '' && Number.isFinite(Number(text)) ? Number(text) : text
}
