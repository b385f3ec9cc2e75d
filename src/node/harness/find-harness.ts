import { constants, open, realpath } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import { fileExists } from '../../lib/fs/file-exists.ts'
import { runProgram } from '../../lib/process/run-program.ts'
import { RolloutError } from '../../model/failure.ts'
import { bundleStart, loadBundle, type Bundle, type ProgramStart } from './install/harness-bundle.ts'
import type { PackagedHarness } from './presets/harness.ts'
import { createHarnessHome } from './harness-home.ts'

/** An installed harness that has the pinned version. */
export interface FoundHarness extends ProgramStart {
  path: string
  /** Present if `polar harness install` installed it; `folder` is the folder of the bundle. */
  bundle?: Bundle
  folder?: string
}

export interface HarnessFolders {
  /** The folder of `polar harness install`. */
  dir: string
  /** Folders to search for programs, in the format of PATH. */
  path: string
  /** Node's name of the platform, such as `linux-x64`. */
  platform: string
  /** The Node that runs harnesses that are scripts. */
  node: { path: string; version: string }
  tmpdir: string
}

/** Finds the installed bundle of a harness, else the pinned version in PATH. Undefined if there is neither. */
export async function findHarness(
  harness: PackagedHarness,
  folders: HarnessFolders,
): Promise<FoundHarness | undefined> {
  const folder = installFolder(harness, folders.dir)
  const bundle = await loadBundle(folder)
  if (bundle !== undefined) {
    return { path: join(folder, bundle.program.path), ...bundleStart(bundle, folder), bundle, folder }
  }
  return (await findProgram(harness, folder, folders)) ?? findInPath(harness, folders)
}

/** Each version has its own folder, so that a new version is never installed over an old one. */
export function installFolder(
  { name, package: { version } }: Pick<PackagedHarness, 'name' | 'package'>,
  dir: string,
): string {
  return join(dir, `${name}-${version}`)
}

/** Finds the program in a folder with the installed package. Does not check its version. */
export async function findProgram(
  harness: PackagedHarness,
  folder: string,
  folders: HarnessFolders,
): Promise<FoundHarness | undefined> {
  const { kind, paths } = harness.program(folders.platform)
  for (const relative of paths) {
    const path = join(folder, relative)
    if (!(await fileExists(path, kind === 'node' ? constants.R_OK : constants.X_OK))) continue
    if (kind === 'node') return { path, command: nodeCommand(harness, path, folders), env: {} }
    return { path, ...bundleStart({ program: { kind, path: relative }, interpreter: null }, folder) }
  }
  return undefined
}

/** Runs the program to read its version. Undefined if the program does not run. */
export async function readVersion(
  harness: PackagedHarness,
  found: ProgramStart,
  { path, tmpdir }: { path: string; tmpdir: string },
): Promise<string | undefined> {
  await using home = await createHarnessHome(tmpdir)
  const { exitCode, stdout } = await runProgram([...found.command, ...versionArgs(harness)], {
    env: { PATH: path, HOME: home.path, TMPDIR: home.tmpdir, ...found.env },
    signal: AbortSignal.timeout(VERSION_TIMEOUT_MS),
  })
  return exitCode === 0 ? /\d+\.\d+\.\d+(?:[-.][\w.]+)?/.exec(stdout)?.[0] : undefined
}

/** Reading a program of 360 MB from a cold disk may take a minute. */
const VERSION_TIMEOUT_MS = 60_000

function versionArgs({ package: { registry, name } }: PackagedHarness): string[] {
  if (registry === 'npm') return ['--version']
  return ['-c', `import importlib.metadata as m; print(m.version(${JSON.stringify(name)}))`]
}

async function findInPath(harness: PackagedHarness, folders: HarnessFolders): Promise<FoundHarness | undefined> {
  // The command of a Python package does not reveal which Python the package was installed for.
  if (harness.package.registry === 'pypi') return undefined
  for (const folder of folders.path.split(delimiter).filter((entry) => entry !== '')) {
    const path = join(folder, harness.command)
    if (!(await fileExists(path, constants.X_OK))) continue
    const found = { path, command: await commandFor(harness, path, folders), env: {} }
    if ((await readVersion(harness, found, folders)) === harness.package.version) return found
  }
  return undefined
}

/** A Node script runs with `folders.node`, which may be newer than the Node in PATH. */
async function commandFor(
  harness: PackagedHarness,
  path: string,
  folders: HarnessFolders,
): Promise<[string, ...string[]]> {
  const target = await realpath(path)
  return /^#!.*\bnode\b/.test(await readStart(target)) ? nodeCommand(harness, target, folders) : [path]
}

async function readStart(path: string): Promise<string> {
  await using file = await open(path)
  const { buffer, bytesRead } = await file.read(Buffer.alloc(128), 0, 128, 0)
  return buffer.toString('latin1', 0, bytesRead).split('\n', 1)[0] ?? ''
}

function nodeCommand(harness: PackagedHarness, script: string, { node }: HarnessFolders): [string, ...string[]] {
  assertNode(harness, node.version)
  return [node.path, script]
}

/** Throws `harness.not-found` if the harness needs a newer Node. */
export function assertNode({ title, minimumNode }: PackagedHarness, version: string): void {
  if (minimumNode === undefined || !isOlder(version, minimumNode)) return
  const message = `${title} needs Node ${minimumNode} or newer; this is Node ${version}.`
  throw new RolloutError('harness.not-found', message)
}

/** Compares as many numbers of a version as `minimum` has. */
export function isOlder(version: string, minimum: string): boolean {
  const [numbers, required] = [version, minimum].map((text) => text.split('.').map(Number))
  const i = required?.findIndex((part, at) => part !== numbers?.[at]) ?? -1
  return i !== -1 && (numbers?.[i] ?? 0) < (required?.[i] ?? 0)
}
