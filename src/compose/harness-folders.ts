import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { HarnessFolders } from '../node/harness/find-harness.ts'
import { harnesses, presets } from '../node/harness/presets/index.ts'
import type { Harness, PackagedHarness } from '../node/harness/presets/harness.ts'
import { RolloutError } from '../model/failure.ts'

const DEFAULT_DIR = join('.polar', 'harnesses')

export const HARNESS_DIR_HELP = `Folder of installed harnesses (default: POLAR_HARNESS_DIR, else ${DEFAULT_DIR})`

/** Returns the folders and programs of harnesses on this machine. `dir` is the value of a flag. */
export function harnessPlaces(
  dir: string | undefined,
  env: Readonly<Record<string, string | undefined>>,
): HarnessFolders {
  return {
    dir: resolve(dir ?? env['POLAR_HARNESS_DIR'] ?? DEFAULT_DIR),
    path: env['PATH'] ?? '',
    platform: `${process.platform}-${process.arch}`,
    node: { path: process.execPath, version: process.versions.node },
    tmpdir: tmpdir(),
  }
}

/** Throws RolloutError `config.invalid` with the known names. */
export function presetNamed(name: string): Harness {
  return named(presets, name)
}

/** Like `presetNamed()`, for harnesses that can be installed. */
export function harnessNamed(name: string): PackagedHarness {
  return named(harnesses, name)
}

function named<H extends Harness>(list: readonly H[], name: string): H {
  const harness = list.find((candidate) => candidate.name === name)
  if (harness) return harness
  const names = list.map((known) => known.name).join(', ')
  throw new RolloutError('config.invalid', `Unknown harness "${name}". Harnesses: ${names}`)
}
