import { createHash } from 'node:crypto'
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { dirname, join, normalize } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { download, withoutCredentials } from '../../../lib/net/download.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { readZip, type ZipEntry } from '../../../lib/archive/zip-reader.ts'

/**
 * CPython as python-build-standalone makes it, which needs nothing but a glibc of 2012, for machines whose own Python is too
 * old. It is published on GitHub; this is the same in a Go module, because proxies of Go modules never change what they
 * gave once, and are mirrored in many places.
 */
const MODULE = 'github.com/kluctl/go-embed-python'
const RELEASE = 'v0.0.0-3.14.6-20260610-1'
/** As `go.sum` has it. */
const SUM = 'h1:oGUS7++Wm3LgxUfD6AmJgKbKQD2wdQFO9PzyJv6T+E4='
const STANDALONE_VERSION = '3.14'

const LARGEST_BYTES = 500e6

const FOLDERS: Readonly<Record<string, string>> = {
  'linux-x64': 'linux-amd64',
  'linux-arm64': 'linux-arm64',
  'darwin-x64': 'darwin-amd64',
  'darwin-arm64': 'darwin-arm64',
}

export interface StandalonePython extends AsyncDisposable {
  executable: string
  /** A folder with pip, which the Python itself has not. */
  pip: string
}

export interface StandaloneDeps {
  /** As Node names it. */
  platform: string
  tmpdir: string
  /** GOPROXY, and the proxy that the machine needs. */
  env: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
}

/** In a folder that is gone when it is disposed of. Throws an Error in words. */
export async function fetchStandalonePython(deps: StandaloneDeps): Promise<StandalonePython> {
  const folder = FOLDERS[deps.platform]
  if (folder === undefined) throw new Error(`there is no Python to be had for ${deps.platform}`)
  const entries = readZip(await downloadModule(deps))
  assertSum(entries)
  const scratch = await mkdtemp(join(deps.tmpdir, 'polar-python-'))
  const dispose = (): Promise<void> => rm(scratch, { recursive: true, force: true })
  try {
    await placeTree(entries, `python/internal/data/${folder}/`, join(scratch, 'python'))
    await placeTree(entries, 'pip/internal/data/', join(scratch, 'pip'))
    const executable = join(scratch, 'python', 'bin', `python${STANDALONE_VERSION}`)
    return { executable, pip: join(scratch, 'pip'), [Symbol.asyncDispose]: dispose }
  } catch (error) {
    await dispose()
    throw error
  }
}

/** The user's, else the one that Go itself would ask. */
async function findProxy(env: StandaloneDeps['env'], signal: AbortSignal): Promise<string> {
  const said = env['GOPROXY'] ?? (await runProgram(['go', 'env', 'GOPROXY'], { env, signal })).stdout.trim()
  const proxy = said.split(/[,|]/).find((url) => /^https?:\/\//.test(url))
  if (proxy !== undefined) return proxy
  throw new Error('it comes from a Go module proxy, and none is known here: set GOPROXY, or install Go or Python 3.12')
}

async function downloadModule({ env, signal }: StandaloneDeps): Promise<Buffer> {
  const proxy = await findProxy(env, signal)
  const url = `${proxy.replace(/\/$/, '')}/${MODULE}/@v/${RELEASE}.zip`
  try {
    return await download(url, { env, signal, maxBytes: LARGEST_BYTES })
  } catch (error) {
    throw new Error(
      `Python ${STANDALONE_VERSION} cannot be had from ${withoutCredentials(url)}: ${(error as Error).message}`,
      {
        cause: error,
      },
    )
  }
}

/** Over the sums of all files by name, whatever the archive around them looks like. */
function sumOf(entries: readonly ZipEntry[]): string {
  const lines = [...entries]
    .sort((one, other) => Buffer.compare(Buffer.from(one.name), Buffer.from(other.name)))
    .map((entry) => `${createHash('sha256').update(entry.read()).digest('hex')}  ${entry.name}\n`)
  return `h1:${createHash('sha256').update(lines.join('')).digest('base64')}`
}

function assertSum(entries: readonly ZipEntry[]): void {
  const sum = sumOf(entries)
  if (sum !== SUM) throw new Error(`what came as ${MODULE} ${RELEASE} is not it: its sum is ${sum}, not ${SUM}`)
}

interface ListedFile {
  name: string
  /** As Go has it: the permissions are the last nine bits. */
  perm: number
  symlink?: string
}

/** A tree as the module embeds it: `files.json` lists it, and programs are compressed. */
export async function placeTree(entries: readonly ZipEntry[], prefix: string, target: string): Promise<void> {
  const root = `${MODULE}@${RELEASE}/${prefix}`
  const byName = new Map(
    entries.flatMap((entry) => (entry.name.startsWith(root) ? [[entry.name.slice(root.length), entry]] : [])),
  )
  const list = byName.get('files.json')?.read().toString('utf8') ?? '{"files":[]}'
  const { files } = JSON.parse(list) as { files: ListedFile[] }
  for (const { name, perm, symlink: leadsTo } of files) {
    const path = join(target, name)
    if (normalize(name) !== name || !path.startsWith(`${target}/`)) throw new Error(`${name} leads elsewhere`)
    const content = byName.get(name)?.read() ?? unzipped(byName.get(`${name}.gz`))
    if (content === undefined && leadsTo === undefined) continue
    await mkdir(dirname(path), { recursive: true })
    if (leadsTo !== undefined) await symlink(leadsTo, path)
    else if (content !== undefined) {
      await writeFile(path, content)
      await chmod(path, (perm & 0o777) | 0o600)
    }
  }
}

function unzipped(entry: ZipEntry | undefined): Buffer | undefined {
  return entry && gunzipSync(entry.read(), { maxOutputLength: LARGEST_BYTES })
}
