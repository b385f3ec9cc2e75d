import { constants, open, realpath } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import { fileExists } from '../../lib/fs/file-exists.ts'
import { runProgram } from '../../lib/process/run-program.ts'
import { RolloutError } from '../../model/failure.ts'
import { bundleStart, loadBundle, type Bundle, type ProgramStart } from './install/harness-bundle.ts'
import type { PackagedHarness } from './presets/harness.ts'
import { createHarnessHome } from './harness-home.ts'

/** A harness on this machine that has the version we know how to run. */
export interface FoundHarness extends ProgramStart {
  path: string
  /** Present when it is one; then it lies in `folder`. */
  bundle?: Bundle
  folder?: string
}

export interface HarnessFolders {
  /** Where `polar harness install` puts harnesses. */
  dir: string
  /** Other folders with programs, as PATH lists them. */
  path: string
  /** As Node names it: `linux-x64`. */
  platform: string
  /** The Node for harnesses that are scripts, and its version. */
  node: { path: string; version: string }
  /** For temporary files. */
  tmpdir: string
}

/** Installed by us, else anywhere in PATH in the right version; undefined when there is none. */
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

/** One folder per version, so that a new pin never meets an old installation. */
export function installFolder(
  { name, package: { version } }: Pick<PackagedHarness, 'name' | 'package'>,
  dir: string,
): string {
  return join(dir, `${name}-${version}`)
}

/** The program in a folder that the package was installed into. Its version is not asked for. */
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

/** What the program says its version is; undefined when it does not run. It finds no other program in PATH. */
export async function askVersion(
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

/** A cold disk takes its time over 360 MB. */
const VERSION_TIMEOUT_MS = 60_000

function versionArgs({ package: { registry, name } }: PackagedHarness): string[] {
  if (registry === 'npm') return ['--version']
  return ['-c', `import importlib.metadata as m; print(m.version(${JSON.stringify(name)}))`]
}

async function findInPath(harness: PackagedHarness, folders: HarnessFolders): Promise<FoundHarness | undefined> {
  // Of a package for Python the command alone does not tell which Python knows it.
  if (harness.package.registry === 'pypi') return undefined
  for (const folder of folders.path.split(delimiter).filter((entry) => entry !== '')) {
    const path = join(folder, harness.command)
    if (!(await fileExists(path, constants.X_OK))) continue
    const found = { path, command: await commandFor(harness, path, folders), env: {} }
    if ((await askVersion(harness, found, folders)) === harness.package.version) return found
  }
  return undefined
}

/** A script for Node is run by the Node we know, which may be newer than the one in PATH. */
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

/** Throws RolloutError `harness.not-found` when it wants a newer one. */
export function assertNode({ title, minimumNode }: PackagedHarness, version: string): void {
  if (minimumNode === undefined || !isOlder(version, minimumNode)) return
  const message = `${title} needs Node ${minimumNode} or newer; this is Node ${version}.`
  throw new RolloutError('harness.not-found', message)
}

/** By the numbers between the dots, as many as `minimum` has. */
export function isOlder(version: string, minimum: string): boolean {
  const [one, other] = [version, minimum].map((text) => text.split('.').map(Number))
  const i = other?.findIndex((part, at) => part !== one?.[at]) ?? -1
  return i !== -1 && (one?.[i] ?? 0) < (other?.[i] ?? 0)
}
