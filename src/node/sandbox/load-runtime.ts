import * as z from 'zod'
import { lacksFields } from '../../lib/process/load-module.ts'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import { loadPlug } from '../../trajectory/load-plug.ts'
import { runtimes } from './runtimes/index.ts'
import type { Runtime, RuntimeDeps } from './runtimes/runtime.ts'

/** A runtime that a user's module exports. */
export type RuntimePlug = Plug<z.ZodObject<{ kind: z.ZodLiteral<string> }>, RuntimeDeps, Runtime>

/**
 * Loads a runtime from a user's module: its export `runtime` has the config schema and a create function. A module can
 * do anything that this process can, so its real path must be in `allowed`. Throws RolloutError `config.invalid`.
 */
export async function loadRuntime(path: string, { allowed }: { allowed: readonly string[] }): Promise<RuntimePlug> {
  const plug: RuntimePlug = await loadPlug(path, { what: 'Runtime', name: 'runtime', allowed })
  const kind = kindOf(plug)
  const reject = (problem: string) => new RolloutError('config.invalid', `Runtime module ${path}: "${kind}" ${problem}`)
  // The kind is the name of a folder.
  if (!/^[a-z][a-z0-9-]*$/.test(kind)) throw reject('must be lower-case letters, digits and dashes.')
  // The two runtimes would find each other's sandboxes.
  if (runtimes.kinds.includes(kind)) throw reject('is a built-in kind; use another name.')
  return plug
}

export function kindOf(plug: RuntimePlug): string {
  return plug.config.shape.kind.value
}

/** `settings` are the fields of the config besides `kind`: `kwargs` of a task. Throws RolloutError `config.invalid`. */
export function createCustomRuntime(
  plug: RuntimePlug,
  settings: Readonly<Record<string, unknown>>,
  deps: RuntimeDeps,
): Runtime {
  const kind = kindOf(plug)
  const config = plug.config.safeParse({ ...settings, kind })
  if (!config.success)
    throw new RolloutError('config.invalid', `Settings of the runtime ${kind}: ${z.prettifyError(config.error)}`)
  const runtime = plug.create(config.data, deps)
  const missing = lacksFields(runtime, FIELDS)
  if (missing.length === 0) return runtime
  throw new RolloutError('config.invalid', `The runtime ${kind} lacks ${missing.join(', ')}.`)
}

const FIELDS = {
  kind: 'string',
  capabilities: 'object',
  check: 'function',
  start: 'function',
  list: 'function',
  remove: 'function',
} as const
