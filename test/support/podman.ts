import { spawn, spawnSync } from 'node:child_process'
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

/** Below the hard limits of any machine; the missing one of the two would be set to more than some allow. */
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

/** Podman's service with folders of its own, out of the way of any other, and an image; or why there is none. */
export async function startPodman(): Promise<Podman | string> {
  if (process.getuid?.() !== 0) return 'podman is started by root only here'
  for (const program of ['podman', 'runc', 'conmon'])
    if (spawnSync(program, ['--version'], { stdio: 'ignore' }).status !== 0) return `${program} is not installed`
  const archive = buildRootArchive(fileURLToPath(new URL('../../.polar/test-images', import.meta.url)))
  if (archive === undefined) return 'the image is made from the packages of a Debian, which this machine is not'
  const dir = mkdtempSync(join(tmpdir(), 'polar-podman-'))
  const socket = join(dir, 'podman.sock')
  const config = join(dir, 'containers.conf')
  writeFileSync(config, CONFIG)
  const folders = ['--root', join(dir, 'root'), '--runroot', join(dir, 'run'), '--tmpdir', join(dir, 'tmp')]
  const options = [...folders, '--storage-driver', 'overlay', '--runtime', 'runc']
  const env = { PATH: process.env['PATH'], HOME: dir, CONTAINERS_CONF: config }
  const service = spawn('podman', [...options, 'system', 'service', '--time=0', `unix://${socket}`], {
    stdio: 'ignore',
    env,
    // Its helpers leave a mark where they are when a container runs out of memory.
    cwd: dir,
  })
  const podman: Podman = {
    socket,
    image: IMAGE,
    async [Symbol.asyncDispose]() {
      if (service.exitCode === null) {
        service.kill('SIGKILL')
        await once(service, 'exit')
      }
      spawnSync('podman', [...options, 'system', 'reset', '--force'], { stdio: 'ignore', env })
      // Helpers of the last commands still clean up after them for a while.
      rmSync(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 250 })
    },
  }
  try {
    for (let attempt = 0; attempt < 100 && !existsSync(socket); attempt += 1) await sleep(100)
    await load(socket, archive)
    return podman
  } catch (error) {
    await podman[Symbol.asyncDispose]()
    throw error
  }
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
