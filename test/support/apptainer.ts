import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { chmodSync, existsSync, mkdtempSync, readdirSync, renameSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { buildRootArchive } from './container-image.ts'

export interface Apptainer extends Disposable {
  program: [string, ...string[]]
  /** The root folder of a small Debian. */
  image: string
}

declare global {
  /** Set by a test file before it changes to a user that cannot read the original folders. */
  var sharedApptainer: Apptainer | string | undefined
}

const ours = fileURLToPath(new URL('../../.polar', import.meta.url))

/**
 * Returns Apptainer, installed on the machine or by scripts/install-apptainer.ts, and an image; or the reason why there is
 * none. With `isForOthers` both are copied to folders that an ordinary user can read.
 */
export function findApptainer({ isForOthers = false } = {}): Apptainer | string {
  const installed = readdirIfThere(join(ours, 'apptainer')).map((name) => join(ours, 'apptainer', name))
  const place = installed.find((each) => existsSync(join(each, 'apptainer')))
  const isOnPath = spawnSync('apptainer', ['version'], { stdio: 'ignore' }).status === 0
  if (!isOnPath && place === undefined)
    return 'apptainer is not installed; on a Debian, node scripts/install-apptainer.ts gets one for the tests'
  const archive = buildRootArchive(join(ours, 'test-images'))
  if (archive === undefined) return 'the image is made from the packages of a Debian, which this machine is not'
  const image = unpack(archive)
  if (!isForOthers)
    return {
      program: [place === undefined ? 'apptainer' : join(place, 'apptainer')],
      image,
      [Symbol.dispose]: () => {},
    }
  const dir = mkdtempSync(join(tmpdir(), 'polar-apptainer-'))
  // This process may have lost root by then, so a child process removes the folder when its input ends.
  const remover = spawn('sh', ['-c', 'cat; rm -rf -- "$0"', dir], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true,
  })
  remover.unref()
  chmodSync(dir, 0o755)
  const program = place === undefined ? 'apptainer' : join(share(place, dir), 'apptainer')
  return { program: [program], image: share(image, dir), [Symbol.dispose]: () => void remover.stdin.end() }
}

/** Copies a folder so that every user can enter it, with hard links where possible. */
function share(folder: string, dir: string): string {
  const target = join(dir, basename(folder))
  if (spawnSync('cp', ['-al', '--', folder, target], { stdio: 'ignore' }).status !== 0) {
    rmSync(target, { recursive: true, force: true })
    execFileSync('cp', ['-a', '--', folder, target])
  }
  execFileSync('find', [target, '-type', 'd', '-exec', 'chmod', 'a+rx', '{}', '+'])
  return target
}

function unpack(archive: string): string {
  const folder = archive.slice(0, -'.tar'.length)
  if (existsSync(folder)) return folder
  const draft = mkdtempSync(`${folder}-`)
  execFileSync('tar', ['-C', draft, '-xpf', archive])
  chmodSync(draft, 0o755)
  renameSync(draft, folder)
  return folder
}

function readdirIfThere(folder: string): string[] {
  return existsSync(folder) ? readdirSync(folder) : []
}
