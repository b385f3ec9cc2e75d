import { RolloutError } from '../../model/failure.ts'
import { askVersion, installFolder, type HarnessFolders } from './find-harness.ts'
import { bundleStart, checkBundle, loadBundle } from './install/harness-bundle.ts'
import type { PackagedHarness } from './presets/harness.ts'

/**
 * All that is wrong with an installed harness, in words; empty when its files are those that were installed, and it starts
 * without any other program and has the pinned version. Undefined when it is not installed.
 */
export async function checkHarness(harness: PackagedHarness, folders: HarnessFolders): Promise<string[] | undefined> {
  const folder = installFolder(harness, folders.dir)
  try {
    const bundle = await loadBundle(folder)
    if (bundle === undefined) return undefined
    const { name, version } = bundle
    if (name !== harness.name || version !== harness.package.version) {
      return [`it is ${name} ${version}, not ${harness.name} ${harness.package.version}`]
    }
    if (bundle.platform !== folders.platform) return [`it is for ${bundle.platform}, and this is ${folders.platform}`]
    const problems = await checkBundle(folder, bundle)
    // What was tampered with is not run.
    if (problems.length > 0) return problems
    const said = await askVersion(harness, bundleStart(bundle, folder), { path: '', tmpdir: folders.tmpdir })
    if (said === version) return []
    return [said === undefined ? 'it does not start' : `it says its version is ${said}, not ${version}`]
  } catch (error) {
    if (error instanceof RolloutError && error.code === 'harness.damaged') return [error.message]
    throw error
  }
}
