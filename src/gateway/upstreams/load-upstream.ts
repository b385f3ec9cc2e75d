import * as z from 'zod'
import type { KindSchema, Plug } from '../../lib/plug.ts'
import { allowModules, lacksFields, loadExport } from '../../lib/process/load-module.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Upstream } from './upstream.ts'

export type UpstreamPlug = Plug<KindSchema, unknown, Upstream>

/**
 * Loads a kind of engine from a module that exports `upstream`: the config that it accepts and how to create it. The config
 * contains `kind`, `url`, and where known `apiKey`, `model` and `capabilities`. A module can do anything that this process
 * can, so its path must come from the operator. Throws RolloutError `config.invalid`.
 */
export async function loadUpstream(path: string): Promise<UpstreamPlug> {
  const lacks = (value: unknown): string[] => lacksFields(value, { config: 'object', create: 'function' })
  const allowed = await allowModules([path])
  const loaded = await loadExport(path, { what: 'Upstream', name: 'upstream', lacks, allowed })
  if ('value' in loaded) return loaded.value as UpstreamPlug
  throw new RolloutError('config.invalid', loaded.problem, { cause: loaded.cause })
}

/** Throws RolloutError `config.invalid` when the config does not match, or when the upstream lacks a method. */
export function createCustomUpstream(plug: UpstreamPlug, config: unknown): Upstream {
  const parsed = plug.config.safeParse(config)
  if (!parsed.success) {
    throw new RolloutError('config.invalid', `The config of the upstream module: ${z.prettifyError(parsed.error)}`)
  }
  const upstream = plug.create(parsed.data, undefined)
  const missing = lacksFields(upstream, METHODS)
  if (missing.length === 0) return upstream
  throw new RolloutError('config.invalid', `The upstream ${parsed.data.kind} lacks ${missing.join(', ')}.`)
}

const METHODS = {
  kind: 'string',
  url: 'string',
  capabilities: 'object',
  send: 'function',
  tokenise: 'function',
  countTokens: 'function',
  listModels: 'function',
  contextTokens: 'function',
  probe: 'function',
} as const
