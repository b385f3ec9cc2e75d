import { access, constants, open, realpath } from 'node:fs/promises'
import { delimiter, join } from 'node:path'
import { runProgram } from '../lib/run-program.ts'
import { RolloutError } from '../model/failure.ts'
import type { Harness } from './harnesses/harness.ts'
import { createHarnessHome } from './harness-home.ts'

/** A harness on this machine that has the version we know how to run. */
export interface FoundHarness {
  path: string
  /** Program and first arguments; those of a launch follow. */
  command: readonly [string, ...string[]]
}

export interface HarnessPlaces {
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
export async function findHarness(harness: Harness, places: HarnessPlaces): Promise<FoundHarness | undefined> {
  const installed = await findProgram(harness, installFolder(harness, places.dir), places)
  return installed ?? findInPath(harness, places)
}

/** One folder per version, so that a new pin never meets an old installation. */
export function installFolder({ name, npm }: Pick<Harness, 'name' | 'npm'>, dir: string): string {
  return join(dir, `${name}-${npm.version}`)
}

/** The program in a folder npm installed into. Its version is not asked for. */
export async function findProgram(
  harness: Harness,
  folder: string,
  places: HarnessPlaces,
): Promise<FoundHarness | undefined> {
  const { kind, paths } = harness.program(places.platform)
  for (const path of paths.map((relative) => join(folder, relative))) {
    if (!(await isThere(path, kind === 'native' ? constants.X_OK : constants.R_OK))) continue
    return { path, command: kind === 'native' ? [path] : nodeCommand(harness, path, places) }
  }
  return undefined
}

/** What the program says its version is; undefined when it does not run. */
export async function askVersion(found: FoundHarness, places: HarnessPlaces): Promise<string | undefined> {
  await using home = await createHarnessHome({}, places.tmpdir)
  const env = { PATH: places.path, HOME: home.path }
  const { exitCode, stdout } = await runProgram([...found.command, '--version'], {
    env,
    signal: AbortSignal.timeout(VERSION_TIMEOUT_MS),
  })
  return exitCode === 0 ? /\d+\.\d+\.\d+(?:-[\w.]+)?/.exec(stdout)?.[0] : undefined
}

/** A cold disk takes its time over 360 MB. */
const VERSION_TIMEOUT_MS = 60_000

async function findInPath(harness: Harness, places: HarnessPlaces): Promise<FoundHarness | undefined> {
  for (const folder of places.path.split(delimiter).filter((entry) => entry !== '')) {
    const path = join(folder, harness.command)
    if (!(await isThere(path, constants.X_OK))) continue
    const found = { path, command: await commandFor(harness, path, places) }
    if ((await askVersion(found, places)) === harness.npm.version) return found
  }
  return undefined
}

/** A script for Node is run by the Node we know, which may be newer than the one in PATH. */
async function commandFor(harness: Harness, path: string, places: HarnessPlaces): Promise<[string, ...string[]]> {
  const target = await realpath(path)
  return /^#!.*\bnode\b/.test(await readStart(target)) ? nodeCommand(harness, target, places) : [path]
}

async function readStart(path: string): Promise<string> {
  await using file = await open(path)
  const { buffer, bytesRead } = await file.read(Buffer.alloc(128), 0, 128, 0)
  return buffer.toString('latin1', 0, bytesRead).split('\n', 1)[0] ?? ''
}

function nodeCommand(harness: Harness, script: string, { node }: HarnessPlaces): [string, ...string[]] {
  const { minimumNode } = harness
  if (minimumNode !== undefined && isOlder(node.version, minimumNode)) {
    const message = `${harness.title} needs Node ${minimumNode} or newer; this is Node ${node.version}.`
    throw new RolloutError('harness.not-found', message)
  }
  return [node.path, script]
}

function isOlder(version: string, minimum: string): boolean {
  const [one, other] = [version, minimum].map((text) => text.split('.').map(Number))
  const i = other?.findIndex((part, at) => part !== one?.[at]) ?? -1
  return i !== -1 && (one?.[i] ?? 0) < (other?.[i] ?? 0)
}

async function isThere(path: string, mode: number): Promise<boolean> {
  return access(path, mode).then(
    () => true,
    () => false,
  )
}
