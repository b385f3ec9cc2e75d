import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import type { HarnessFolders } from '../node/harness/find-harness.ts'
import { harnesses, presets } from '../node/harness/presets/index.ts'
import type { Harness, PackagedHarness } from '../node/harness/presets/harness.ts'
import { RolloutError } from '../model/failure.ts'

const DEFAULT_DIR = join('.polar', 'harnesses')

export const HARNESS_DIR_HELP = `Where harnesses are installed (default: POLAR_HARNESS_DIR, else ${DEFAULT_DIR})`

/** Where harnesses are on this machine. `dir` is what a flag says. */
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

/** Throws RolloutError `config.invalid` that lists the names there are. */
export function presetNamed(name: string): Harness {
  return named(presets, name)
}

/** The same, of those that can be installed. */
export function harnessNamed(name: string): PackagedHarness {
  return named(harnesses, name)
}

function named<H extends Harness>(list: readonly H[], name: string): H {
  const harness = list.find((candidate) => candidate.name === name)
  if (harness) return harness
  const names = list.map((known) => known.name).join(', ')
  throw new RolloutError('config.invalid', `There is no harness "${name}". Harnesses: ${names}`)
}
