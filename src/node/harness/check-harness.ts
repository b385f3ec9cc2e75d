import { RolloutError } from '../../model/failure.ts'
import { installFolder, readVersion, type HarnessFolders } from './find-harness.ts'
import { bundleStart, checkBundle, loadBundle } from './install/harness-bundle.ts'
import type { PackagedHarness } from './presets/harness.ts'

/**
 * Returns the problems of an installed harness: changed files, a program that does not start by itself, or a version
 * other than the pinned version. Undefined if the harness is not installed.
 */
export async function checkHarness(harness: PackagedHarness, folders: HarnessFolders): Promise<string[] | undefined> {
  const folder = installFolder(harness, folders.dir)
  try {
    const bundle = await loadBundle(folder)
    if (bundle === undefined) return undefined
    const { name, version } = bundle
    if (name !== harness.name || version !== harness.package.version) {
      return [`the bundle contains ${name} ${version}, not ${harness.name} ${harness.package.version}`]
    }
    if (bundle.platform !== folders.platform)
      return [`the bundle is for ${bundle.platform}, but this machine is ${folders.platform}`]
    const problems = await checkBundle(folder, bundle)
    // A program whose files were changed must not run.
    if (problems.length > 0) return problems
    const found = await readVersion(harness, bundleStart(bundle, folder), { path: '', tmpdir: folders.tmpdir })
    if (found === version) return []
    return [found === undefined ? 'the program does not start' : `its version is ${found}, not ${version}`]
  } catch (error) {
    if (error instanceof RolloutError && error.code === 'harness.damaged') return [error.message]
    throw error
  }
}
