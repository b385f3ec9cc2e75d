import { lstat, mkdir, mkdtemp, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { basename, join } from 'node:path'
import { runProgram } from '../lib/run-program.ts'
import { RolloutError } from '../model/failure.ts'
import { askVersion, findProgram, installFolder, type HarnessPlaces } from './find-harness.ts'
import type { Harness } from './harnesses/harness.ts'

export interface InstallDeps {
  places: HarnessPlaces
  /** For npm: its settings, proxy and cache are the user's own. */
  env: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
}

export interface Installation {
  folder: string
  program: string
  bytes: number
  /** False when it was there already. */
  isNew: boolean
}

/**
 * Puts the pinned version of a harness where `findHarness` looks for it. It appears there whole and checked, or not at
 * all; who else installs the same at the same time does no harm.
 */
export async function installHarness(harness: Harness, deps: InstallDeps): Promise<Installation> {
  const { places } = deps
  const folder = installFolder(harness, places.dir)
  const existing = await findProgram(harness, folder, places)
  if (existing) return { folder, program: existing.path, bytes: await sizeOf(folder), isNew: false }
  await mkdir(places.dir, { recursive: true, mode: 0o700 })
  const scratch = await mkdtemp(join(places.dir, `.${basename(folder)}-`))
  try {
    await runNpm(harness, scratch, deps)
    await verify(harness, scratch, places)
    await moveInto(scratch, folder)
  } finally {
    await rm(scratch, { recursive: true, force: true })
  }
  const program = await findProgram(harness, folder, places)
  if (!program) throw failed(harness, `${folder} was taken away`)
  return { folder, program: program.path, bytes: await sizeOf(folder), isNew: true }
}

async function runNpm(harness: Harness, folder: string, { env, signal }: InstallDeps): Promise<void> {
  // Without one of its own npm would look for the project around it.
  await writeFile(join(folder, 'package.json'), '{ "private": true }\n')
  const wanted = `${harness.npm.package}@${harness.npm.version}`
  const flags = ['--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund', '--omit=dev', '--save-exact']
  const { exitCode, stderr, stdout } = await runProgram(['npm', 'install', ...flags, wanted], {
    cwd: folder,
    env,
    signal,
  })
  if (exitCode !== 0) throw failed(harness, `npm ended with ${exitCode}:\n${(stderr || stdout).trim()}`)
}

async function verify(harness: Harness, folder: string, places: HarnessPlaces): Promise<void> {
  const program = await findProgram(harness, folder, places)
  if (!program) {
    const looked = harness.program(places.platform).paths.join(' and ')
    throw failed(harness, `the package has no program for ${places.platform} (looked for ${looked})`)
  }
  const version = await askVersion(program, places)
  if (version !== harness.npm.version) {
    throw failed(harness, `it says its version is ${version ?? 'nothing'}, not ${harness.npm.version}`)
  }
}

async function moveInto(scratch: string, folder: string): Promise<void> {
  try {
    await rename(scratch, folder)
  } catch (error) {
    // Someone else was faster, with the same.
    if (!['ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error
  }
}

function failed(harness: Harness, reason: string): RolloutError {
  const { package: name, version } = harness.npm
  return new RolloutError('harness.install-failed', `Cannot install ${harness.title} (${name} ${version}): ${reason}`)
}

/** Of all files below, links not followed. */
export async function sizeOf(folder: string): Promise<number> {
  const entries = await readdir(folder, { recursive: true, withFileTypes: true })
  let bytes = 0
  for (const entry of entries) if (entry.isFile()) bytes += (await lstat(join(entry.parentPath, entry.name))).size
  return bytes
}
