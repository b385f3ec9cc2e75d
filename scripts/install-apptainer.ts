// Apptainer for the tests, on a Debian that has none: `node scripts/install-apptainer.ts`. Nothing of the machine is changed.
import { execFileSync, spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  appendFileSync,
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'

/** Only this suite of Debian has it. Its libraries are newer than the machine's and come along. */
const SUITE = 'sid'
const PACKAGES = ['apptainer', 'squashfuse']
const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'
/** Who some tests run as. Apptainer wants everybody to have a name. */
const TEST_USER = { id: 1_900_001, name: 'polar-test' }

/**
 * Lays the packages over the machine's own files, for one program and what it starts only. Programs of the machine run on
 * the newer libraries as well. An ordinary user does it in a user namespace, and has no more rights afterwards.
 */
const WRAPPER = `#!/bin/sh
root=$(dirname -- "$(readlink -f -- "$0")")/root
if [ "$(id -u)" = 0 ]; then users= drop=; else users='--user --map-current-user --keep-caps' drop='setpriv --ambient-caps -all --inh-caps -all'; fi
exec unshare $users --mount --propagation private /bin/sh -c 'root=$1; shift
for each in usr etc var/lib; do mount -t overlay overlay -o "lowerdir=$root/$each:/$each" "/$each" || exit 125; done
exec "$@"' sh "$root" $drop apptainer "$@"
`

const cache = join(dirname(import.meta.dirname), '.polar', 'apptainer')

/** Makes it if it is not there, and gives the program. Throws on a machine that is no Debian, or cannot reach one. */
function installApptainer(): string {
  const key = createHash('sha256')
    .update(JSON.stringify([SUITE, PACKAGES, TEST_USER, WRAPPER]))
    .digest('hex')
    .slice(0, 16)
  const place = join(cache, key)
  const program = join(place, 'apptainer')
  if (existsSync(program)) return program
  mkdirSync(cache, { recursive: true })
  const draft = mkdtempSync(join(cache, 'draft-'))
  try {
    chmodSync(draft, 0o755)
    const root = join(draft, 'root')
    mkdirSync(root)
    for (const archive of download(join(draft, 'apt'))) execFileSync('dpkg-deb', ['-x', archive, root])
    rmSync(join(draft, 'apt'), { recursive: true })
    rmSync(join(root, 'usr/share/doc'), { recursive: true, force: true })
    // Debian keeps its helper one folder deeper than it expects, so that at times it takes /usr/lib for where it was installed.
    mkdirSync(join(root, 'usr/lib/var/lib/apptainer/mnt/session'), { recursive: true })
    symlinkSync('/etc', join(root, 'usr/lib/etc'))
    const { id, name } = TEST_USER
    copyFileSync('/etc/passwd', join(root, 'etc/passwd'))
    appendFileSync(join(root, 'etc/passwd'), `${name}:x:${id}:${id}::/nonexistent:/bin/sh\n`)
    copyFileSync('/etc/group', join(root, 'etc/group'))
    appendFileSync(join(root, 'etc/group'), `${name}:x:${id}:\n`)
    writeFileSync(join(draft, 'apptainer'), WRAPPER, { mode: 0o755 })
    renameSync(draft, place)
    for (const other of readdirSync(cache).filter((each) => each !== key))
      rmSync(join(cache, other), { recursive: true, force: true })
  } catch (error) {
    rmSync(draft, { recursive: true, force: true })
    throw error
  }
  return program
}

/** As root in CI, where its tests would skip otherwise. Not getting it is no failure of ours: they say so and skip. */
export function installApptainerInCi(): void {
  if (process.env['CI'] !== 'true' || process.getuid?.() !== 0) return
  if (spawnSync('apptainer', ['version'], { stdio: 'ignore' }).status === 0) return
  try {
    console.log(`apptainer for test/e2e/runtimes-apptainer.test.ts: ${installApptainer()}`)
  } catch (error) {
    console.log(`apptainer cannot be installed: ${error instanceof Error ? error.message : String(error)}`)
  }
}

/** With all they need, as if nothing were installed; from where the machine gets its own packages. */
function download(work: string): string[] {
  const archives = join(work, 'cache', 'archives')
  for (const folder of [join(archives, 'partial'), join(work, 'lists', 'partial')])
    mkdirSync(folder, { recursive: true })
  const [sources, status, config] = ['sources.list', 'status', 'apt.conf'].map((name) => join(work, name)) as [
    string,
    string,
    string,
  ]
  writeFileSync(sources, `deb [signed-by=${KEYRING}] ${findMirror()} ${SUITE} main\n`)
  writeFileSync(status, '')
  const settings = {
    'Dir::State': work,
    'Dir::State::lists': join(work, 'lists'),
    'Dir::State::status': status,
    'Dir::Cache': join(work, 'cache'),
    'Dir::Etc::sourcelist': sources,
    'Dir::Etc::sourceparts': '/dev/null',
    'Dir::Etc::preferences': '/dev/null',
    'Dir::Etc::preferencesparts': '/dev/null',
    'Acquire::Languages': 'none',
    'APT::Sandbox::User': 'root',
  }
  writeFileSync(
    config,
    Object.entries(settings)
      .map(([name, value]) => `${name} "${value}";\n`)
      .join(''),
  )
  const options = { stdio: ['ignore', 'ignore', 'inherit'] as const, env: { ...process.env, APT_CONFIG: config } }
  const run = (...args: string[]) => execFileSync('apt-get', args, { ...options, stdio: [...options.stdio] })
  run('update', '-qq')
  run('install', '-y', '-qq', '--download-only', '--no-install-recommends', ...PACKAGES)
  return readdirSync(archives)
    .filter((name) => name.endsWith('.deb'))
    .map((name) => join(archives, name))
}

function findMirror(): string {
  const release = /^VERSION_CODENAME=(\w+)$/m.exec(readFileSync('/etc/os-release', 'utf8'))?.[1]
  const targets = ['indextargets', '--format', '$(RELEASE) $(REPO_URI)', 'Created-By: Packages']
  const lines = execFileSync('apt-get', targets, { encoding: 'utf8' }).split('\n')
  const uri = lines.map((line) => line.split(' ')).find(([name]) => name === release)?.[1]
  if (uri === undefined) throw new Error('This machine gets its packages from no Debian')
  return uri
}

if (import.meta.main) console.log(installApptainer())
