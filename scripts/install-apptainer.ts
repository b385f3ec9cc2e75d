// Fetches Apptainer for the tests on Debian: `node scripts/install-apptainer.ts`. Changes no file of the machine.
import { createHash } from 'node:crypto'
import {
  appendFileSync,
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { downloadPackages, findMirror, unpackPackages } from './debian-packages.ts'
import { isProgram } from './system-packages.ts'

/** Only this Debian suite has Apptainer. Its newer libraries are fetched with it. */
const SUITE = 'sid'
const PACKAGES = ['apptainer', 'squashfuse']
const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'
/** User of some tests. Apptainer requires that every user has a name. */
const TEST_USER = { id: 1_900_001, name: 'polar-test' }

/**
 * Overlays the machine's files with the packages, only for one program and its child processes. Programs of the machine then
 * use the newer libraries. Without root this happens in a user namespace and grants no further rights.
 */
const WRAPPER = `#!/bin/sh
root=$(dirname -- "$(readlink -f -- "$0")")/root
if [ "$(id -u)" = 0 ]; then users= drop=; else users='--user --map-current-user --keep-caps' drop='setpriv --ambient-caps -all --inh-caps -all'; fi
exec unshare $users --mount --propagation private /bin/sh -c 'root=$1; shift
for each in usr etc var/lib; do mount -t overlay overlay -o "lowerdir=$root/$each:/$each" "/$each" || exit 125; done
exec "$@"' sh "$root" $drop apptainer "$@"
`

const cache = join(dirname(import.meta.dirname), '.polar', 'apptainer')

/** Fetches Apptainer if it is missing, and returns its program. Throws if the machine is not Debian or has no mirror. */
async function installApptainer(): Promise<string> {
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
    const sources = `deb [signed-by=${KEYRING}] ${await findMirror()} ${SUITE} main\n`
    await unpackPackages(
      await downloadPackages(join(draft, 'apt'), PACKAGES, { sources, isOnTopOfMachine: false }),
      root,
    )
    rmSync(join(draft, 'apt'), { recursive: true })
    rmSync(join(root, 'usr/share/doc'), { recursive: true, force: true })
    // Debian installs the helper one folder deeper than Apptainer expects, so it may take /usr/lib for its installation folder.
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

/** Fetches Apptainer if the machine has none, and returns a note about it. */
export async function prepareApptainer(): Promise<string | undefined> {
  if (isProgram('apptainer')) return undefined
  try {
    await installApptainer()
    return 'fetched into .polar/apptainer: apptainer'
  } catch (error) {
    const { stderr, message } = error as { stderr?: string; message: string }
    return `tests that need apptainer are skipped: it cannot be fetched: ${(stderr?.trim() || message).split('\n').at(-1)}`
  }
}

if (import.meta.main) console.log(await installApptainer())
