import { RolloutError } from '../../model/failure.ts'
import type { AgentSpec } from '../../model/task.ts'
import { findHarness, type HarnessPlaces } from './find-harness.ts'
import { bundleStart } from './install/harness-bundle.ts'
import { presets } from './presets/index.ts'
import type { Harness } from './presets/harness.ts'
import { isPackaged, loadHarness } from './load-harness.ts'
import type { RunnableHarness } from '../session/sandboxed-session.ts'

/**
 * What a task's agent is, and where it is on this machine. One that is not installed here may be in the task's image, so
 * it is not an error yet. Throws `config.invalid` for a name there is not, or a module that is not allowed.
 */
export async function findRunnable(
  agent: AgentSpec,
  { places, modules }: { places: HarnessPlaces; modules: readonly string[] },
): Promise<RunnableHarness> {
  const harness =
    agent.import_path == null ? presetOf(agent.harness!) : await loadHarness(agent.import_path, { allowed: modules })
  if (!isPackaged(harness)) return { harness }
  const version = harness.versionOf?.(agent.settings)
  // The task brings another version than the one we install; its image, or a step, must have it.
  if (version !== undefined && version !== harness.package.version) return { harness, version }
  const found = await findHarness(harness, places)
  const { bundle, folder } = found ?? {}
  if (bundle === undefined || folder === undefined) return { harness, ...(version === undefined ? {} : { version }) }
  return { harness, bundle: { folder, startAt: (path) => bundleStart(bundle, path) } }
}

/** Throws `config.invalid` that lists the names there are. */
export function presetOf(name: string): Harness {
  const preset = presets.find((candidate) => candidate.name === name)
  if (preset !== undefined) return preset
  const names = presets.map((known) => known.name).join(', ')
  throw new RolloutError('config.invalid', `agent.harness: "${name}" is none of ${names}.`)
}
