import { createHash, randomUUID } from 'node:crypto'
import { constants } from 'node:fs'
import { cp, lstat, mkdir, readlink, rename, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileExists, isFolder } from '../../../../lib/fs/file-exists.ts'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import { makeDirectories } from '../../../../lib/fs/make-directories.ts'
import { ignoreErrno } from '../../../../lib/fs/errno.ts'
import { INSIDE_HOME, INSIDE_ID } from '../../linux/files/paths.ts'

/**
 * Visible entries of /etc, besides generated files: network names, certificates, files of the loader and of shells.
 * Other entries may contain secrets.
 */
const ETC = [
  'alternatives',
  'bash.bashrc',
  'ca-certificates',
  'ca-certificates.conf',
  'debian_version',
  'inputrc',
  'java-17-openjdk',
  'ld.so.cache',
  'ld.so.conf',
  'ld.so.conf.d',
  'localtime',
  'magic',
  'mime.types',
  'os-release',
  'pki/ca-trust/extracted',
  'pki/tls/certs',
  'profile',
  'protocols',
  'python3',
  'rpc',
  'services',
  'shells',
  'ssl/certs',
  'ssl/openssl.cnf',
  'terminfo',
  'timezone',
]

const MADE_ETC: Readonly<Record<string, string>> = {
  passwd: `root:x:0:0:root:/root:/bin/sh\nagent:x:${INSIDE_ID}:${INSIDE_ID}:agent:${INSIDE_HOME}:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n`,
  group: `root:x:0:\nagent:x:${INSIDE_ID}:\nnogroup:x:65534:\n`,
  hosts: '127.0.0.1 localhost\n::1 localhost\n',
  'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files dns\n',
  'resolv.conf': '',
}

const EMPTY = ['dev', 'etc', 'home', 'proc', 'root', 'run', 'sys', 'tmp', 'var', 'var/tmp', 'mnt', 'srv']
const MERGED = ['bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32']

/**
 * The machine's files in a sandbox without an image: a small generated tree, and folders that are bound over it,
 * read-only.
 */
export interface MachineTree {
  base: string
  /** Folders of the machine that are bound to the same path inside. */
  folders: string[]
}

/** Creates the small tree below `dir`, or reuses one that was created with the same libraries of the machine. */
export async function prepareMachineTree(dir: string, visible: readonly string[]): Promise<MachineTree> {
  const folders: string[] = []
  for (const path of visible) if (await isFolder(path)) folders.push(path)
  const links: [name: string, target: string][] = []
  for (const name of MERGED) {
    const stats = await lstat(`/${name}`).catch(() => undefined)
    if (stats?.isSymbolicLink() === true) links.push([name, await readlink(`/${name}`)])
    else if (stats?.isDirectory() === true) folders.push(`/${name}`)
  }
  const cache = await stat('/etc/ld.so.cache').catch(() => undefined)
  const key = JSON.stringify([ETC, MADE_ETC, folders, links, cache?.mtimeMs])
  const base = join(dir, `base-${createHash('sha256').update(key).digest('hex').slice(0, 16)}`)
  if (await isFolder(base)) return { base, folders }
  const draft = `${base}.${randomUUID()}`
  await makeDirectories(draft, 0o755)
  for (const name of EMPTY) await mkdir(join(draft, name), { mode: 0o755 })
  for (const folder of folders) await mkdir(join(draft, folder), { recursive: true, mode: 0o755 })
  for (const [name, target] of links) await symlink(target, join(draft, name))
  for (const name of ETC) await copyIfReadable(join('/etc', name), join(draft, 'etc', name))
  for (const [name, content] of Object.entries(MADE_ETC)) await writeFile(join(draft, 'etc', name), content)
  await rename(draft, base).catch(async (error: unknown) => {
    await rm(draft, { recursive: true, force: true })
    ignoreErrno('ENOTEMPTY', 'EEXIST')(error)
  })
  return { base, folders }
}

async function copyIfReadable(from: string, to: string): Promise<void> {
  // A dangling link is copied too.
  if ((await lstat(from).catch(() => undefined)) === undefined) return
  await mkdir(dirname(to), { recursive: true, mode: 0o755 })
  await cp(from, to, {
    recursive: true,
    verbatimSymlinks: true,
    filter: async (path) => (await lstat(path)).isSymbolicLink() || fileExists(path, constants.R_OK),
  })
}

export const mountTree = loadProgram(new URL('./mount-tree.sh', import.meta.url))
export const addUserNamespace = loadProgram(new URL('./add-user-namespace.sh', import.meta.url))
