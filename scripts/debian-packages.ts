// Downloads and unpacks Debian packages below a folder. Needs no root and changes no file of the machine.
import { execFile } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)
const ARCHIVES_AT_A_TIME = 2
const MACHINE_STATUS = '/var/lib/dpkg/status'
const LISTING_BYTES = 64 * 1024 * 1024

export interface UnpackedPackage {
  /** The package's control fields, as `dpkg-deb --field` prints them. */
  control: string
  /** Absolute paths of the package's files and folders. */
  files: string[]
}

export interface DownloadOptions {
  /** Contents of sources.list; absent: the machine's own sources. */
  sources?: string
  /** Count the machine's installed packages as dependencies that are met; otherwise all dependencies are downloaded. */
  isOnTopOfMachine: boolean
}

/** Downloads packages with their dependencies below `work` and returns the paths of the archives. */
export async function downloadPackages(
  work: string,
  packages: readonly string[],
  { sources, isOnTopOfMachine }: DownloadOptions,
): Promise<string[]> {
  const archives = join(work, 'cache', 'archives')
  for (const folder of [join(archives, 'partial'), join(work, 'lists', 'partial')])
    mkdirSync(folder, { recursive: true })
  // A copy: apt-get locks the folder of this file, and only root may lock the machine's own.
  const status = join(work, 'status')
  writeFileSync(status, isOnTopOfMachine ? readFileSync(MACHINE_STATUS) : '')
  const settings: Record<string, string> = {
    'Dir::State': work,
    'Dir::State::lists': join(work, 'lists'),
    'Dir::State::status': status,
    'Dir::Cache': join(work, 'cache'),
    'Acquire::Languages': 'none',
    'APT::Sandbox::User': 'root',
  }
  if (sources !== undefined) {
    const list = join(work, 'sources.list')
    writeFileSync(list, sources)
    Object.assign(settings, {
      'Dir::Etc::sourcelist': list,
      'Dir::Etc::sourceparts': '/dev/null',
      'Dir::Etc::preferences': '/dev/null',
      'Dir::Etc::preferencesparts': '/dev/null',
    })
  }
  const config = join(work, 'apt.conf')
  const lines = Object.entries(settings).map(([name, value]) => `${name} "${value}";\n`)
  writeFileSync(config, lines.join(''))
  const env = { ...process.env, APT_CONFIG: config, DEBIAN_FRONTEND: 'noninteractive' }
  await run('apt-get', ['update', '-qq'], { env })
  await run('apt-get', ['install', '-y', '-qq', '--download-only', '--no-install-recommends', ...packages], { env })
  return readdirSync(archives)
    .filter((name) => name.endsWith('.deb'))
    .toSorted()
    .map((name) => join(archives, name))
}

/** Unpacks archives into one root folder whose /bin, /sbin and /lib* are links into /usr. No maintainer script runs. */
export async function unpackPackages(archives: readonly string[], root: string): Promise<UnpackedPackage[]> {
  mkdirSync(join(root, 'usr'), { recursive: true })
  for (const name of ['bin', 'sbin', 'lib', 'lib64']) {
    mkdirSync(join(root, 'usr', name), { recursive: true })
    if (!existsSync(join(root, name))) symlinkSync(join('usr', name), join(root, name))
  }
  const unpacked: UnpackedPackage[] = []
  const waiting = [...archives]
  const work = async () => {
    for (let archive = waiting.shift(); archive !== undefined; archive = waiting.shift()) {
      const { stdout: control } = await run('dpkg-deb', ['--field', archive])
      unpacked.push({ control, files: await extract(archive, root) })
    }
  }
  await Promise.all(Array.from({ length: ARCHIVES_AT_A_TIME }, work))
  return unpacked
}

/** `dpkg-deb --extract` would replace the links into /usr by folders. */
async function extract(archive: string, root: string): Promise<string[]> {
  const script = 'dpkg-deb --fsys-tarfile "$1" | tar -C "$2" --keep-directory-symlink -xpvf -'
  const { stdout } = await run('/bin/sh', ['-c', script, 'sh', archive, root], { maxBuffer: LISTING_BYTES })
  return stdout.split('\n').flatMap((line) => (line === '' ? [] : [toAbsolute(line)]))
}

/** Adds unpacked packages to the package database of `root`, on top of the machine's, so that dpkg-query and dpkg -L list them. */
export function recordPackages(packages: readonly UnpackedPackage[], root: string): void {
  const database = join(root, 'var/lib/dpkg')
  mkdirSync(join(database, 'info'), { recursive: true })
  const stanzas = [readFileSync(MACHINE_STATUS, 'utf8').trimEnd()]
  for (const { control, files } of packages) {
    const field = (name: string) => new RegExp(`^${name}: (.*)$`, 'm').exec(control)?.[1]
    stanzas.push(control.trimEnd().replace(/^Package: .*$/m, '$&\nStatus: install ok installed'))
    const suffix = field('Multi-Arch') === 'same' ? `:${field('Architecture')}` : ''
    writeFileSync(join(database, 'info', `${field('Package')}${suffix}.list`), `${files.join('\n')}\n`)
  }
  writeFileSync(join(database, 'status'), `${stanzas.join('\n\n')}\n`)
}

/** The address from which the machine gets its Debian packages. Throws on a machine without one. */
export async function findMirror(): Promise<string> {
  const release = /^VERSION_CODENAME=(\w+)$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1]
  const targets = ['indextargets', '--format', '$(RELEASE) $(REPO_URI)', 'Created-By: Packages']
  const lines = (await run('apt-get', targets)).stdout.split('\n')
  const uri = lines.map((line) => line.split(' ')).find(([name]) => name === release)?.[1]
  if (uri === undefined) throw new Error('apt-get has no Debian mirror in its sources')
  return uri
}

/** dpkg writes `/.` for the root folder. */
function toAbsolute(listed: string): string {
  return listed === './' ? '/.' : `/${listed.replace(/^\.\//, '').replace(/\/$/, '')}`
}
