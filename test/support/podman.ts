import { spawn, spawnSync, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createReadStream, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { Client } from 'undici'
import { buildRootArchive } from './container-image.ts'

export interface Podman extends AsyncDisposable {
  socket: string
  image: string
}

/** Ulimits below the hard limits of any machine; podman's defaults exceed the hard limits of some machines. */
const CONFIG = `
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=32768:32768"]
[engine]
events_logger = "file"
cgroup_manager = "cgroupfs"
# How long a helper stays for every command that was run.
exit_command_delay = 1
`
const IMAGE = 'localhost/polar-test:latest'

/** User ids without a user on this machine, for the users in containers. */
const SUBORDINATE = '100000000:65536'

/**
 * Podman's service as a user without root. The machine has no such user: a mount namespace replaces the files that define
 * the user and its subordinate ids. Ends with all helpers when its input ends, and removes files of the subordinate ids,
 * which only root can remove.
 */
const ROOTLESS = `set -eu
mkdir -p "$DIR/run" "$DIR/home"
for name in passwd group; do cp "/etc/$name" "$DIR/$name"; done
echo "polar-podman:x:$USER_ID:$USER_ID::$DIR/home:/bin/sh" >> "$DIR/passwd"
echo "polar-podman:x:$USER_ID:" >> "$DIR/group"
for name in subuid subgid; do echo "polar-podman:${SUBORDINATE}" > "$DIR/$name"; done
for name in passwd group subuid subgid; do mount --bind "$DIR/$name" "/etc/$name"; done
chown -R "$USER_ID:$USER_ID" "$DIR"
cd "$DIR"
setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups env -i PATH="$PATH" HOME="$DIR/home" XDG_RUNTIME_DIR="$DIR/run" CONTAINERS_CONF="$CONTAINERS_CONF" "$@" </dev/null &
read -r _ || :
kill -9 -1
cd /
rm -rf "$DIR"
`

/**
 * Starts Podman's service with separate folders and an image, or returns the reason why it cannot. With `userId` the service
 * runs as that user; only root can start it in either case.
 */
export async function startPodman({ userId }: { userId?: number } = {}): Promise<Podman | string> {
  if (process.getuid?.() !== 0) return 'only root can start the podman service of these tests: run npm test as root'
  const programs = ['podman', 'runc', 'conmon', ...(userId === undefined ? [] : ['newuidmap', 'setpriv', 'unshare'])]
  for (const program of programs)
    if (spawnSync('which', [program], { stdio: 'ignore' }).status !== 0)
      return `${program} is not installed: apt-get install podman runc uidmap`
  if (userId !== undefined && !['subuid', 'subgid'].every((name) => existsSync(`/etc/${name}`)))
    return 'there is no /etc/subuid: users may not give numbers to others here'
  const archive = buildRootArchive(fileURLToPath(new URL('../../.polar/test-images', import.meta.url)))
  if (archive === undefined) return 'the image is made from the packages of a Debian, which this machine is not'
  const dir = mkdtempSync(join(tmpdir(), 'polar-podman-'))
  const socket = join(dir, 'podman.sock')
  const config = join(dir, 'containers.conf')
  writeFileSync(config, CONFIG)
  const folders = ['--root', join(dir, 'root'), '--runroot', join(dir, 'run'), '--tmpdir', join(dir, 'tmp')]
  const options = [...folders, '--storage-driver', 'overlay', '--runtime', 'runc']
  const command = ['podman', ...options, 'system', 'service', '--time=0', `unix://${socket}`]
  const env = { PATH: process.env['PATH'], HOME: dir, CONTAINERS_CONF: config }
  // When a container runs out of memory, its helpers create a file in their current folder.
  const [service, said] =
    userId === undefined
      ? start(command, { env, cwd: dir })
      : start(
          [
            'unshare',
            '--mount',
            '--propagation',
            'private',
            '--pid',
            '--fork',
            '--kill-child',
            '--mount-proc',
            '/bin/sh',
            '-c',
            ROOTLESS,
            'sh',
            ...command,
          ],
          {
            env: { ...env, DIR: dir, USER_ID: String(userId) },
            cwd: dir,
          },
        )
  const podman: Podman = {
    socket,
    image: IMAGE,
    async [Symbol.asyncDispose]() {
      if (service.exitCode === null) {
        if (userId === undefined) service.kill('SIGKILL')
        else service.stdin!.end()
        await once(service, 'exit')
      }
      if (userId !== undefined) return
      spawnSync('podman', [...options, 'system', 'reset', '--force'], { stdio: 'ignore', env })
      // Helpers of the last commands still remove files for a while.
      rmSync(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 250 })
    },
  }
  try {
    for (let attempt = 0; attempt < 100 && !existsSync(socket); attempt += 1) {
      if (service.exitCode !== null) throw new Error(`Podman ended at once: ${said()}`)
      await sleep(100)
    }
    await load(socket, archive)
    return podman
  } catch (error) {
    await podman[Symbol.asyncDispose]()
    if (userId === undefined) throw error
    return `podman cannot run as an ordinary user: ${error instanceof Error ? error.message : String(error)}`
  }
}

function start(
  [file, ...args]: readonly string[],
  options: { env: NodeJS.ProcessEnv; cwd: string },
): [service: ChildProcess, said: () => string] {
  const service = spawn(file!, args, { ...options, stdio: ['pipe', 'ignore', 'pipe'] })
  let stderr = ''
  service.stderr.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-2000)))
  return [service, () => stderr.trim()]
}

async function load(socketPath: string, archive: string): Promise<void> {
  const client = new Client('http://engine', { socketPath })
  try {
    const { statusCode, body } = await client.request({
      method: 'POST',
      path: `/v1.41/images/create?fromSrc=-&repo=${IMAGE.slice(0, IMAGE.lastIndexOf(':'))}`,
      headers: { 'content-type': 'application/x-tar' },
      body: createReadStream(archive),
    })
    const said = await body.text()
    if (statusCode !== 200) throw new Error(`Cannot load ${archive}: ${said}`)
  } finally {
    await client.close()
  }
}
