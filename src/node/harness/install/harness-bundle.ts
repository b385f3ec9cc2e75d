import { createHash } from 'node:crypto'
import { chmodSync, lstatSync, readdirSync } from 'node:fs'
import { readdir, readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import { ignoreErrno } from '../../../lib/fs/errno.ts'
import { parseJsonObject } from '../../../lib/json/json-text.ts'
import { readElfNeeds } from '../../../lib/process/elf.ts'
import { RolloutError } from '../../../model/failure.ts'
import { compareSums, parseSums, renderSums, sumFiles } from './file-sums.ts'
import type { PackagedHarness } from '../presets/harness.ts'

const relativePath = z.string().regex(/^(?!\/)(?!.*(^|\/)\.\.(\/|$)).+$/, 'must be a path inside the bundle')

/**
 * A harness in a folder: the CLI, and the Node or Python that runs it. The sandbox must provide only what `requires`
 * lists. A bundle can be mounted read-only into any sandbox of its platform, at any path. All paths are relative to the
 * folder; the file `bundle.sums` lists the sums of all files.
 */
export const Bundle = z.strictObject({
  schemaVersion: z.literal(1),
  name: z.string(),
  version: z.string(),
  package: z.strictObject({ registry: z.enum(['npm', 'pypi']), name: z.string() }),
  /** Node's name of the platform. */
  platform: z.string(),
  program: z.strictObject({ kind: z.enum(['node', 'python', 'native']), path: relativePath }),
  /** The interpreter of the program; null for a native program. */
  interpreter: z.strictObject({ path: relativePath, version: z.string() }).nullable(),
  /** What the sandbox must provide. `libc` null: any libc. */
  requires: z.strictObject({
    libc: z.enum(['glibc', 'musl']).nullable(),
    /** The minimum version; null without glibc. */
    glibc: z.string().nullable(),
    libraries: z.array(z.string()),
  }),
  files: z.int(),
  bytes: z.int(),
  /** The sum of bundle.sums. */
  sha256: z.string(),
  createdBy: z.string(),
})
export type Bundle = z.infer<typeof Bundle>

const BUNDLE_FILE = 'bundle.json'
const SUMS_FILE = 'bundle.sums'

/** The command of a program without its arguments, and the variables that it needs. */
export interface ProgramStart {
  command: readonly [string, ...string[]]
  env: Readonly<Record<string, string>>
}

/** Returns the command of a bundle that is mounted at the path `at`. */
export function bundleStart(
  { program, interpreter }: Pick<Bundle, 'program' | 'interpreter'>,
  at: string,
): ProgramStart {
  const path = `${at}/${program.path}`
  switch (program.kind) {
    case 'native':
      return { command: [path], env: {} }
    case 'node':
      return { command: [`${at}/${interpreter?.path}`, path], env: {} }
    case 'python':
      // Isolated: variables and packages of the sandbox's own Python are not used. The bundle's sitecustomize.py removes
      // LD_LIBRARY_PATH from the environment of child processes. A session must not write bytecode into its bundle.
      return { command: [path, '-I', '-B'], env: { LD_LIBRARY_PATH: `${at}/${PYTHON_LIBRARIES}` } }
  }
}

/** The folder of a bundle with the shared libraries of Python. */
export const PYTHON_LIBRARIES = 'python/lib'

/** Undefined if the folder has no bundle. Throws `harness.damaged` if the bundle cannot be read. */
export async function loadBundle(folder: string): Promise<Bundle | undefined> {
  const path = join(folder, BUNDLE_FILE)
  const text = await readFile(path, 'utf8').catch(ignoreErrno('ENOENT', 'ENOTDIR'))
  if (text === undefined) return undefined
  const stored = parseJsonObject(text) ?? {}
  const { schemaVersion } = stored
  const bundle = Bundle.safeParse(stored)
  if (bundle.success) return bundle.data
  const reason =
    typeof schemaVersion === 'number' && schemaVersion > 1
      ? 'a newer version of polar created it'
      : z.prettifyError(bundle.error)
  throw new RolloutError('harness.damaged', `${path} cannot be read: ${reason}`)
}

export type BundleContents = Pick<Bundle, 'platform' | 'program' | 'interpreter' | 'createdBy'>

/** Makes a folder a bundle: records the sums of its files, which must not change afterwards. */
export async function sealBundle(
  folder: string,
  harness: Pick<PackagedHarness, 'name' | 'package'>,
  contents: BundleContents,
): Promise<Bundle> {
  makeReadable(folder)
  const sums = await sumFiles(folder, { except: [BUNDLE_FILE, SUMS_FILE] })
  const text = renderSums(sums)
  const { registry, name, version } = harness.package
  const bundle: Bundle = {
    schemaVersion: 1,
    name: harness.name,
    version,
    package: { registry, name },
    platform: contents.platform,
    program: contents.program,
    interpreter: contents.interpreter,
    requires: await requirementsOf(folder, contents),
    files: sums.length,
    bytes: sums.reduce((total, sum) => total + sum.bytes, 0),
    sha256: createHash('sha256').update(text).digest('hex'),
    createdBy: contents.createdBy,
  }
  await writeAtomically(join(folder, SUMS_FILE), text)
  await writeAtomically(join(folder, BUNDLE_FILE), `${JSON.stringify(bundle, null, 2)}\n`)
  return bundle
}

/** Writes a file atomically. A concurrent process that seals the same folder writes the same content. */
async function writeAtomically(path: string, text: string): Promise<void> {
  const scratch = `${path}.${process.pid}`
  await writeFile(scratch, text, { mode: 0o644 })
  await rename(scratch, path)
}

/** Makes all files readable: the user of a sandbox is not known. Access is restricted by the parent folders. */
function makeReadable(folder: string): void {
  chmodSync(folder, 0o755)
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isSymbolicLink()) continue
    const path = join(entry.parentPath, entry.name)
    const mode = lstatSync(path).mode & 0o777
    const readable = mode | (mode & 0o111 ? 0o555 : 0o444)
    if (mode !== readable) chmodSync(path, readable)
  }
}

async function requirementsOf(
  folder: string,
  { program, interpreter }: Pick<Bundle, 'program' | 'interpreter'>,
): Promise<Bundle['requires']> {
  const paths = [program.path, ...(interpreter === null ? [] : [interpreter.path])]
  if (program.kind === 'python') paths.push(...(await extensionModules(folder)))
  const needs = (await Promise.all(paths.map((path) => readElfNeeds(join(folder, path))))).filter(
    (need) => need !== undefined,
  )
  const own = new Set(paths.map((path) => path.split('/').at(-1)))
  const libraries = [...new Set(needs.flatMap((need) => need.libraries))].filter((name) => !own.has(name)).sort()
  const glibc =
    needs
      .flatMap((need) => need.glibc ?? [])
      .sort(byVersion)
      .at(-1) ?? null
  const isMusl = needs.some(({ interpreter: loader }) => loader?.includes('ld-musl'))
  return { libc: isMusl ? 'musl' : glibc === null ? null : 'glibc', glibc, libraries }
}

async function extensionModules(folder: string): Promise<string[]> {
  const names = await readdir(folder, { recursive: true })
  return names.filter((name) => /\.so(\.[\d.]+)?$/.test(name))
}

function byVersion(a: string, b: string): number {
  return a.localeCompare(b, 'en', { numeric: true })
}

/** Returns the files of a bundle that changed since it was sealed, with the reason. */
export async function checkBundle(folder: string, bundle: Bundle): Promise<string[]> {
  const text = await readFile(join(folder, SUMS_FILE), 'utf8').catch(() => undefined)
  if (text === undefined) return [`${SUMS_FILE} is missing`]
  if (createHash('sha256').update(text).digest('hex') !== bundle.sha256) return [`${SUMS_FILE} was changed`]
  return compareSums(parseSums(text), await sumFiles(folder, { except: [BUNDLE_FILE, SUMS_FILE] }))
}
