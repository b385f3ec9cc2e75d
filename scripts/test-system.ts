// Fetches programs for the end-to-end tests on Debian: `node scripts/test-system.ts`. Needs no root.
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  chmodSync,
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
import { promisify } from 'node:util'
import { downloadPackages, recordPackages, unpackPackages } from './debian-packages.ts'
import { isProgram, missingSystemPackages } from './system-packages.ts'

/**
 * Runs a command in a mount namespace that overlays the machine's files with the unpacked packages. Writes to these folders
 * go to memory and end with the command. An ordinary user gets the mounts from a user namespace, without further rights.
 */
const WRAPPER = `#!/bin/sh
place=$(dirname -- "$(readlink -f -- "$0")")
if [ "$(id -u)" = 0 ]; then users= drop=; else users='--user --map-current-user --keep-caps' drop='setpriv --ambient-caps -all --inh-caps -all --bounding-set -all'; fi
exec unshare $users --mount --propagation private /bin/sh -c 'place=$1; shift
mount -t tmpfs -o mode=755 tmpfs "$place/written" || exit 125
for each in usr etc var/lib; do
  mkdir -p "$place/written/$each/upper" "$place/written/$each/work"
  mount -t overlay overlay -o "lowerdir=$place/root/$each:/$each,upperdir=$place/written/$each/upper,workdir=$place/written/$each/work" "/$each" || exit 125
done
exec "$@"' sh "$place" $drop "$@"
`

/** Links that a maintainer script would create. */
const ALTERNATIVES = {
  iptables: 'iptables-nft',
  'iptables-save': 'iptables-nft-save',
  'iptables-restore': 'iptables-nft-restore',
  ip6tables: 'ip6tables-nft',
  'ip6tables-save': 'ip6tables-nft-save',
  'ip6tables-restore': 'ip6tables-nft-restore',
  slurmctld: 'slurmctld-wlm',
  slurmd: 'slurmd-wlm',
  slurmstepd: 'slurmstepd-wlm',
}

/** The tests run as on a machine without this package. */
const FETCHED_BY_POLAR = ['bubblewrap']

const cache = join(dirname(import.meta.dirname), '.polar', 'test-system')

export interface TestSystem {
  /** Command prefix that adds the missing programs. Empty if none is missing, or none can be added. */
  prefix: string[]
  /** What was fetched, or the reason why nothing was; undefined if no program is missing. */
  remark: string | undefined
}

/** Fetches the packages that this machine lacks. A machine that cannot fetch them skips the tests that need them. */
export async function prepareTestSystem(): Promise<TestSystem> {
  const missing = missingSystemPackages()
    .map(({ name }) => name)
    .filter((name) => !FETCHED_BY_POLAR.includes(name))
  if (missing.length === 0) return { prefix: [], remark: undefined }
  const tool = ['apt-get', 'dpkg-deb', 'unshare', 'setpriv', 'mount', 'tar'].find((name) => !isProgram(name))
  const without = (reason: string) => ({
    prefix: [],
    remark: `tests that need ${missing.join(', ')} are skipped: ${reason}`,
  })
  if (tool !== undefined) return without(`they are not installed, and without ${tool} they cannot be fetched`)
  try {
    const enter = await fetchPackages(missing)
    await promisify(execFile)(enter, ['true'])
    return { prefix: [enter], remark: `fetched into .polar/test-system: ${missing.join(', ')}` }
  } catch (error) {
    return without(`they are not installed, and fetching them failed: ${lastLine(error)}`)
  }
}

async function fetchPackages(packages: readonly string[]): Promise<string> {
  const machine = readFileSync('/var/lib/dpkg/status')
  const key = createHash('sha256')
    .update(JSON.stringify([packages, WRAPPER, ALTERNATIVES]))
    .update(machine)
    .digest('hex')
    .slice(0, 16)
  const place = join(cache, key)
  if (existsSync(place)) return join(place, 'enter')
  mkdirSync(cache, { recursive: true })
  const draft = mkdtempSync(join(cache, 'draft-'))
  try {
    chmodSync(draft, 0o755)
    const root = join(draft, 'root')
    for (const folder of ['usr', 'etc', 'var/lib']) mkdirSync(join(root, folder), { recursive: true })
    mkdirSync(join(draft, 'written'))
    const archives = await downloadPackages(join(draft, 'apt'), packages, { isOnTopOfMachine: true })
    recordPackages(await unpackPackages(archives, root), root)
    for (const folder of [join(draft, 'apt'), join(root, 'usr/share/doc'), join(root, 'usr/share/man')])
      rmSync(folder, { recursive: true, force: true })
    for (const [name, target] of Object.entries(ALTERNATIVES))
      if (existsSync(join(root, 'usr/sbin', target))) symlinkSync(target, join(root, 'usr/sbin', name))
    writeFileSync(join(draft, 'enter'), WRAPPER, { mode: 0o755 })
    renameSync(draft, place)
  } catch (error) {
    rmSync(draft, { recursive: true, force: true })
    throw error
  }
  for (const other of readdirSync(cache).filter((each) => each !== key))
    rmSync(join(cache, other), { recursive: true, force: true })
  return join(place, 'enter')
}

function lastLine(error: unknown): string {
  const { stderr, message } = error as { stderr?: string; message: string }
  return (stderr?.trim() || message).split('\n').at(-1) ?? ''
}

if (import.meta.main) console.log(await prepareTestSystem())
