import { createHash } from 'node:crypto'
import { chmod, lstat, readdir, readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import { readElfNeeds } from '../../../lib/process/elf.ts'
import { RolloutError } from '../../../model/failure.ts'
import { compareSums, parseSums, renderSums, sumFiles } from './file-sums.ts'
import type { PackagedHarness } from '../presets/harness.ts'

const relativePath = z.string().regex(/^(?!\/)(?!.*(^|\/)\.\.(\/|$)).+$/, 'must lead to somewhere inside')

/**
 * A harness in a folder that needs nothing from outside of itself but what `requires` says: the CLI, and the Node or
 * Python that runs it. It may be mounted read-only into any sandbox of its platform, at any path. All paths are relative
 * to the folder, and `bundle.sums` beside this says what each file is.
 */
export const Bundle = z.strictObject({
  schemaVersion: z.literal(1),
  name: z.string(),
  version: z.string(),
  package: z.strictObject({ registry: z.enum(['npm', 'pypi']), name: z.string() }),
  /** As Node names it. */
  platform: z.string(),
  program: z.strictObject({ kind: z.enum(['node', 'python', 'native']), path: relativePath }),
  /** What runs the program; null when it runs by itself. */
  interpreter: z.strictObject({ path: relativePath, version: z.string() }).nullable(),
  /** What the sandbox must have. `libc` null: anything will do. */
  requires: z.strictObject({
    libc: z.enum(['glibc', 'musl']).nullable(),
    /** At least; null without glibc. */
    glibc: z.string().nullable(),
    libraries: z.array(z.string()),
  }),
  files: z.int(),
  bytes: z.int(),
  /** Of bundle.sums. */
  sha256: z.string(),
  createdBy: z.string(),
})
export type Bundle = z.infer<typeof Bundle>

const BUNDLE_FILE = 'bundle.json'
const SUMS_FILE = 'bundle.sums'

/** How to start a program: what comes before its arguments, and what it must find in its environment. */
export interface ProgramStart {
  command: readonly [string, ...string[]]
  env: Readonly<Record<string, string>>
}

/** How to start what is in a bundle that lies at `at`, a path as whoever starts it sees it. */
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
      // Isolated: neither variables nor packages of the sandbox's own Python take part. The libraries it came with are
      // found by a variable that it takes away from its children. Bytecode that a session wrote would damage the bundle.
      return { command: [path, '-I', '-B'], env: { LD_LIBRARY_PATH: `${at}/${PYTHON_LIBRARIES}` } }
  }
}

/** Where the libraries that a Python needs lie in a bundle. */
export const PYTHON_LIBRARIES = 'python/lib'

/** Undefined when there is none; throws RolloutError `harness.damaged` for one that cannot be read. */
export async function loadBundle(folder: string): Promise<Bundle | undefined> {
  const path = join(folder, BUNDLE_FILE)
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT' || error.code === 'ENOTDIR') return undefined
    throw error
  })
  if (text === undefined) return undefined
  const { schemaVersion } = parseJson(text) as { schemaVersion?: unknown }
  const bundle = Bundle.safeParse(parseJson(text))
  if (bundle.success) return bundle.data
  const reason =
    typeof schemaVersion === 'number' && schemaVersion > 1 ? 'a newer polar made it' : z.prettifyError(bundle.error)
  throw new RolloutError('harness.damaged', `${path} cannot be read: ${reason}`)
}

function parseJson(text: string): unknown {
  try {
    return (JSON.parse(text) as unknown) ?? {}
  } catch {
    return {}
  }
}

export type BundleContents = Pick<Bundle, 'platform' | 'program' | 'interpreter' | 'createdBy'>

/** Makes a bundle of a folder with all that belongs into it: from here on nothing in it may change. */
export async function sealBundle(
  folder: string,
  harness: Pick<PackagedHarness, 'name' | 'package'>,
  contents: BundleContents,
): Promise<Bundle> {
  await openToAll(folder)
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
  await writeWhole(join(folder, SUMS_FILE), text)
  await writeWhole(join(folder, BUNDLE_FILE), `${JSON.stringify(bundle, null, 2)}\n`)
  return bundle
}

/** Another one that seals the same at the same time writes the same. */
async function writeWhole(path: string, text: string): Promise<void> {
  const scratch = `${path}.${process.pid}`
  await writeFile(scratch, text, { mode: 0o644 })
  await rename(scratch, path)
}

/** In a sandbox it may be anybody who runs it. Who may come to the folder at all is up to the folders above it. */
async function openToAll(folder: string): Promise<void> {
  await chmod(folder, 0o755)
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isSymbolicLink()) continue
    const path = join(entry.parentPath, entry.name)
    const mode = (await lstat(path)).mode & 0o777
    const wanted = mode | (mode & 0o111 ? 0o555 : 0o444)
    if (mode !== wanted) await chmod(path, wanted)
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

function byVersion(one: string, other: string): number {
  return one.localeCompare(other, 'en', { numeric: true })
}

/** All that is wrong with the files of a bundle, by name; empty when it is as it was sealed. */
export async function checkBundle(folder: string, bundle: Bundle): Promise<string[]> {
  const text = await readFile(join(folder, SUMS_FILE), 'utf8').catch(() => undefined)
  if (text === undefined) return [`${SUMS_FILE} is missing`]
  if (createHash('sha256').update(text).digest('hex') !== bundle.sha256) return [`${SUMS_FILE} was changed`]
  return compareSums(parseSums(text), await sumFiles(folder, { except: [BUNDLE_FILE, SUMS_FILE] }))
}
