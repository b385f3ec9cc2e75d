import { lacksFields, loadExport } from '../../lib/process/load-module.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Harness, PackagedHarness } from './presets/harness.ts'
import { presets } from './presets/index.ts'

/**
 * Loads a harness from a user's module, which exports `harness` as `defineHarness` returns it. A module has all permissions
 * of this process, so its real path must be on the list of allowed modules. Throws `config.invalid`.
 */
export async function loadHarness(path: string, { allowed }: { allowed: readonly string[] }): Promise<Harness> {
  const loaded = await loadExport(path, { what: 'Harness', name: 'harness', lacks, allowed })
  if (!('value' in loaded)) throw new RolloutError('config.invalid', loaded.problem, { cause: loaded.cause })
  const harness = loaded.value as Harness
  const { name } = harness
  if (!presets.some((preset) => preset.name === name)) return harness
  throw new RolloutError(
    'config.invalid',
    `Harness module ${path}: "${name}" is the name of a built-in harness. Use another name.`,
  )
}

/** Whether `polar harness install` can install it. */
export function isPackaged(harness: Harness): harness is PackagedHarness {
  return harness.package !== undefined
}

function lacks(value: unknown): string[] {
  const missing = lacksFields(value, FIELDS)
  if (missing.length > 0) return missing
  const harness = value as Harness
  if (!/^[a-z]+(_[a-z]+)*$/.test(harness.name)) missing.push('a name of lower-case letters and _')
  if (!['stdin', 'file'].includes(harness.instruction)) missing.push('instruction, "stdin" or "file"')
  if (!Array.isArray(harness.mcpTransports)) missing.push('mcpTransports, a list')
  if (!isPackaged(harness)) return missing
  missing.push(...lacksFields(harness, { program: 'function', dialect: 'string' }))
  const { registry, version } = harness.package
  if (registry !== 'npm' && registry !== 'pypi') missing.push('package.registry, "npm" or "pypi"')
  missing.push(...lacksFields(harness.package, { name: 'string' }).map(() => 'package.name, a string'))
  if (!/^\d+\.\d+\.\d+/.test(version)) missing.push('package.version, an exact version')
  return missing
}

const FIELDS = {
  name: 'string',
  title: 'string',
  command: 'string',
  hasSubAgents: 'boolean',
  instruction: 'string',
  mcpTransports: 'object',
  settings: 'object',
  configure: 'function',
  exitCodes: 'object',
} as const
