import { createHash } from 'node:crypto'
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { dirname, join, normalize } from 'node:path'
import { gunzipSync } from 'node:zlib'
import { download, withoutCredentials } from '../../../lib/net/download.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { readZip, type ZipEntry } from '../../../lib/archive/zip-reader.ts'

/**
 * CPython of python-build-standalone, for machines whose own Python is too old; it needs only a glibc of 2012. This Go
 * module contains the same files as its GitHub releases. Module proxies never change a published version, and there are
 * many mirrors of them.
 */
const MODULE = 'github.com/kluctl/go-embed-python'
const RELEASE = 'v0.0.0-3.14.6-20260610-1'
/** The checksum in the format of `go.sum`. */
const SUM = 'h1:oGUS7++Wm3LgxUfD6AmJgKbKQD2wdQFO9PzyJv6T+E4='
const STANDALONE_VERSION = '3.14'

const MAX_BYTES = 500e6

const FOLDERS: Readonly<Record<string, string>> = {
  'linux-x64': 'linux-amd64',
  'linux-arm64': 'linux-arm64',
  'darwin-x64': 'darwin-amd64',
  'darwin-arm64': 'darwin-arm64',
}

export interface StandalonePython extends AsyncDisposable {
  executable: string
  /** A folder with pip; this Python contains none. */
  pip: string
}

export interface StandaloneDeps {
  /** Node's name of the platform. */
  platform: string
  tmpdir: string
  /** Contains GOPROXY and the proxy settings of the machine. */
  env: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
}

/** Downloads Python to a folder that is removed on disposal. Throws an Error whose message names the cause. */
export async function fetchStandalonePython(deps: StandaloneDeps): Promise<StandalonePython> {
  const folder = FOLDERS[deps.platform]
  if (folder === undefined) throw new Error(`no standalone Python exists for ${deps.platform}`)
  const entries = readZip(await downloadModule(deps))
  assertSum(entries)
  const scratch = await mkdtemp(join(deps.tmpdir, 'polar-python-'))
  const dispose = (): Promise<void> => rm(scratch, { recursive: true, force: true })
  try {
    await extractTree(entries, `python/internal/data/${folder}/`, join(scratch, 'python'))
    await extractTree(entries, 'pip/internal/data/', join(scratch, 'pip'))
    const executable = join(scratch, 'python', 'bin', `python${STANDALONE_VERSION}`)
    return { executable, pip: join(scratch, 'pip'), [Symbol.asyncDispose]: dispose }
  } catch (error) {
    await dispose()
    throw error
  }
}

/** Returns the user's module proxy, else the proxy that an installed Go uses. */
async function findProxy(env: StandaloneDeps['env'], signal: AbortSignal): Promise<string> {
  const setting = env['GOPROXY'] ?? (await runProgram(['go', 'env', 'GOPROXY'], { env, signal })).stdout.trim()
  const proxy = setting.split(/[,|]/).find((url) => /^https?:\/\//.test(url))
  if (proxy !== undefined) return proxy
  throw new Error('no Go module proxy to download Python from is known. Set GOPROXY, or install Go or Python 3.12')
}

async function downloadModule({ env, signal }: StandaloneDeps): Promise<Buffer> {
  const proxy = await findProxy(env, signal)
  const url = `${proxy.replace(/\/$/, '')}/${MODULE}/@v/${RELEASE}.zip`
  try {
    return await download(url, { env, signal, maxBytes: MAX_BYTES })
  } catch (error) {
    throw new Error(
      `Python ${STANDALONE_VERSION} could not be downloaded from ${withoutCredentials(url)}: ${(error as Error).message}`,
      {
        cause: error,
      },
    )
  }
}

/** The Go module checksum: over the sums of all files by name, independent of the archive format. */
function sumOf(entries: readonly ZipEntry[]): string {
  const lines = [...entries]
    .sort((a, b) => Buffer.compare(Buffer.from(a.name), Buffer.from(b.name)))
    .map((entry) => `${createHash('sha256').update(entry.read()).digest('hex')}  ${entry.name}\n`)
  return `h1:${createHash('sha256').update(lines.join('')).digest('base64')}`
}

function assertSum(entries: readonly ZipEntry[]): void {
  const sum = sumOf(entries)
  if (sum !== SUM) throw new Error(`the checksum of ${MODULE} ${RELEASE} is ${sum}, not ${SUM}`)
}

interface ListedFile {
  name: string
  /** A Go file mode: the permissions are the last nine bits. */
  perm: number
  symlink?: string
}

/** Extracts a tree of the module: `files.json` lists its files, and programs are compressed. */
export async function extractTree(entries: readonly ZipEntry[], prefix: string, target: string): Promise<void> {
  const root = `${MODULE}@${RELEASE}/${prefix}`
  const byName = new Map(
    entries.flatMap((entry) => (entry.name.startsWith(root) ? [[entry.name.slice(root.length), entry]] : [])),
  )
  const list = byName.get('files.json')?.read().toString('utf8') ?? '{"files":[]}'
  const { files } = JSON.parse(list) as { files: ListedFile[] }
  for (const { name, perm, symlink: linkTarget } of files) {
    const path = join(target, name)
    if (normalize(name) !== name || !path.startsWith(`${target}/`))
      throw new Error(`${name} is outside of the target folder`)
    const content = byName.get(name)?.read() ?? unzipped(byName.get(`${name}.gz`))
    if (content === undefined && linkTarget === undefined) continue
    await mkdir(dirname(path), { recursive: true })
    if (linkTarget !== undefined) await symlink(linkTarget, path)
    else if (content !== undefined) {
      await writeFile(path, content)
      await chmod(path, (perm & 0o777) | 0o600)
    }
  }
}

function unzipped(entry: ZipEntry | undefined): Buffer | undefined {
  return entry && gunzipSync(entry.read(), { maxOutputLength: MAX_BYTES })
}
