import { existsSync } from 'node:fs'
import { chmod, constants, copyFile, link, mkdir, mkdtemp, rename, rm } from 'node:fs/promises'
import { basename, dirname, join, relative } from 'node:path'
import { RolloutError } from '../../../model/failure.ts'
import { hashFile } from './file-sums.ts'
import { assertNode, findProgram, installFolder, readVersion, type HarnessFolders } from '../find-harness.ts'
import { bundleStart, checkBundle, loadBundle, sealBundle, type Bundle, type BundleContents } from './harness-bundle.ts'
import type { PackagedHarness } from '../presets/harness.ts'
import { installFromNpm } from './install-from-npm.ts'
import { installFromPypi } from './install-from-pypi.ts'

export interface InstallDeps {
  folders: HarnessFolders
  /** Environment of npm and pip, with the user's settings, proxy and cache. */
  env: Readonly<Record<string, string | undefined>>
  /** Recorded in the bundle. */
  createdBy: string
  signal: AbortSignal
}

export interface Installation {
  folder: string
  bundle: Bundle
  /** `upgraded`: the package was installed, but was not a bundle yet. `replaced`: the installed bundle was damaged. */
  outcome: 'installed' | 'upgraded' | 'replaced' | 'kept'
}

/**
 * Installs the pinned version of a harness as a bundle, where `findHarness` finds it. The installation is atomic; several
 * processes may install the same harness at the same time.
 */
export async function installHarness(harness: PackagedHarness, deps: InstallDeps): Promise<Installation> {
  const { folders } = deps
  const folder = installFolder(harness, folders.dir)
  const state = await stateOf(harness, folder, folders)
  switch (state.kind) {
    case 'whole':
      return { folder, bundle: state.bundle, outcome: 'kept' }
    case 'unsealed':
      return { folder, bundle: await seal(harness, folder, deps), outcome: 'upgraded' }
    case 'damaged':
      return { folder, bundle: await createBundle(harness, folder, deps, { replace: true }), outcome: 'replaced' }
    case 'absent':
      return { folder, bundle: await createBundle(harness, folder, deps, { replace: false }), outcome: 'installed' }
  }
}

type State = { kind: 'whole'; bundle: Bundle } | { kind: 'unsealed' | 'damaged' | 'absent' }

async function stateOf(harness: PackagedHarness, folder: string, folders: HarnessFolders): Promise<State> {
  if (!existsSync(folder)) return { kind: 'absent' }
  try {
    const bundle = await loadBundle(folder)
    if (bundle !== undefined) {
      return (await checkBundle(folder, bundle)).length === 0 ? { kind: 'whole', bundle } : { kind: 'damaged' }
    }
  } catch (error) {
    if (error instanceof RolloutError && error.code === 'harness.damaged') return { kind: 'damaged' }
    throw error
  }
  return { kind: (await findProgram(harness, folder, folders)) === undefined ? 'damaged' : 'unsealed' }
}

async function createBundle(
  harness: PackagedHarness,
  folder: string,
  deps: InstallDeps,
  { replace }: { replace: boolean },
): Promise<Bundle> {
  const { dir } = deps.folders
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const scratch = await mkdtemp(join(dir, `.${basename(folder)}-`))
  const old = `${scratch}-old`
  try {
    await fetchPackage(harness, scratch, deps)
    const bundle = await seal(harness, scratch, deps)
    // Processes that have the old bundle open or mounted keep it.
    if (replace) await rename(folder, old)
    await moveInto(scratch, folder)
    return bundle
  } finally {
    for (const leftover of [scratch, old]) await rm(leftover, { recursive: true, force: true })
  }
}

async function fetchPackage(harness: PackagedHarness, folder: string, deps: InstallDeps): Promise<void> {
  const problem =
    harness.package.registry === 'npm'
      ? await installFromNpm(harness.package, folder, deps)
      : await installFromPypi(harness.package, folder, deps)
  if (problem !== undefined) throw failed(harness, problem)
}

/** Adds the interpreter, checks that the program starts, and seals the bundle. */
async function seal(harness: PackagedHarness, folder: string, deps: InstallDeps): Promise<Bundle> {
  const { folders } = deps
  const program = await findProgram(harness, folder, folders)
  if (program === undefined) {
    const paths = harness.program(folders.platform).paths.join(' and ')
    throw failed(harness, `the package has no program for ${folders.platform} (expected ${paths})`)
  }
  const { kind } = harness.program(folders.platform)
  const contents: BundleContents = {
    platform: folders.platform,
    program: { kind, path: relative(folder, program.path) },
    interpreter: kind === 'node' ? await addNode(harness, folder, folders) : null,
    createdBy: deps.createdBy,
  }
  const version = await readVersion(harness, bundleStart(contents, folder), { path: '', tmpdir: folders.tmpdir })
  if (version !== harness.package.version) {
    throw failed(harness, `its program reports the version ${version ?? 'nothing'}, not ${harness.package.version}`)
  }
  return sealBundle(folder, harness, contents)
}

/** Adds Node to a bundle. All bundles share one file if the file system supports links. */
async function addNode(
  harness: PackagedHarness,
  folder: string,
  { dir, node, platform }: HarnessFolders,
): Promise<NonNullable<Bundle['interpreter']>> {
  assertNode(harness, node.version)
  const path = 'node/bin/node'
  const [shared, target] = [join(dir, `.node-${node.version}-${platform}`), join(folder, path)]
  if ((await hashFile(shared).catch(() => undefined)) !== (await hashFile(node.path))) {
    const scratch = `${shared}.${process.pid}`
    await copyFile(node.path, scratch, constants.COPYFILE_FICLONE)
    await chmod(scratch, 0o755)
    await rename(scratch, shared)
  }
  await mkdir(dirname(target), { recursive: true })
  await rm(target, { force: true })
  await link(shared, target).catch(() => copyFile(shared, target, constants.COPYFILE_FICLONE))
  return { path, version: node.version }
}

async function moveInto(scratch: string, folder: string): Promise<void> {
  try {
    await rename(scratch, folder)
  } catch (error) {
    // Another process has installed the same bundle.
    if (!['ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error
  }
}

function failed(harness: PackagedHarness, reason: string): RolloutError {
  const { name, version } = harness.package
  return new RolloutError('harness.install-failed', `Cannot install ${harness.title} (${name} ${version}): ${reason}`)
}
