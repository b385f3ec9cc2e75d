import { RolloutError } from '../../model/failure.ts'
import type { AgentSpec } from '../../model/task.ts'
import { findHarness, type HarnessFolders } from './find-harness.ts'
import { bundleStart, type ProgramStart } from './install/harness-bundle.ts'
import { presets } from './presets/index.ts'
import type { Harness } from './presets/harness.ts'
import { isPackaged, loadHarness } from './load-harness.ts'

/** A harness, and the files of it that a sandbox needs. */
export interface RunnableHarness {
  harness: Harness
  /** Absent: the harness is part of the sandbox's image and starts by its name. */
  bundle?: { folder: string; startAt(path: string): ProgramStart }
  /** The version that the program in the sandbox must report. Absent: any version. */
  version?: string
}

/**
 * Finds the harness of a task, and its installation on this machine. A harness that is not installed here is not an error:
 * the task's image may contain it. Throws `config.invalid` for an unknown name or a module that is not allowed.
 */
export async function findRunnable(
  agent: AgentSpec,
  { folders, modules }: { folders: HarnessFolders; modules: readonly string[] },
): Promise<RunnableHarness> {
  const harness =
    agent.import_path == null ? presetOf(agent.harness!) : await loadHarness(agent.import_path, { allowed: modules })
  if (!isPackaged(harness)) return { harness }
  const version = harness.versionOf?.(agent.settings)
  // The task uses another version than `polar harness install` installs; its image or a prepare step must provide it.
  if (version !== undefined && version !== harness.package.version) return { harness, version }
  const found = await findHarness(harness, folders)
  const { bundle, folder } = found ?? {}
  if (bundle === undefined || folder === undefined) return { harness, version }
  return { harness, bundle: { folder, startAt: (path) => bundleStart(bundle, path) } }
}

/** Throws `config.invalid` with the list of presets. */
export function presetOf(name: string): Harness {
  const preset = presets.find((candidate) => candidate.name === name)
  if (preset !== undefined) return preset
  const names = presets.map((known) => known.name).join(', ')
  throw new RolloutError('config.invalid', `agent.harness: "${name}" is none of ${names}.`)
}
