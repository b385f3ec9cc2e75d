import { createHash, randomUUID } from 'node:crypto'
import { chmod, mkdir, rename } from 'node:fs/promises'
import { request } from 'node:http'
import { join } from 'node:path'
import { orAborted } from '../../../../lib/async/until-aborted.ts'
import { ignoreErrno } from '../../../../lib/fs/errno.ts'
import { isFolder } from '../../../../lib/fs/file-exists.ts'
import { makeDirectories } from '../../../../lib/fs/make-directories.ts'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { localImageName } from '../../linux/files/image-names.ts'
import { HOST_ENV } from '../../linux/files/paths.ts'
import { removeTree } from '../../linux/records.ts'

export interface FetchedImagesOptions {
  dir: string
  program: readonly [string, ...string[]]
  /** Unix socket of the Docker engine, or of Podman's service, for images named by `docker-daemon:`. */
  dockerSocket: string
  pull: 'never' | 'missing'
}

/**
 * Images named by `docker://`, `oras://` or `docker-daemon:`, as folders that Apptainer unpacks once. The key of an
 * image of the local engine includes its id, so a rebuilt image is unpacked again.
 */
export class FetchedImages {
  readonly #options: FetchedImagesOptions
  readonly #underway = new Map<string, Promise<void>>()

  constructor(options: FetchedImagesOptions) {
    this.#options = options
  }

  /** Returns the root folder of an image. Throws `runtime.image-missing`. */
  async require(name: string, signal: AbortSignal): Promise<string> {
    const { dir, pull } = this.#options
    const key = createHash('sha256')
      .update(JSON.stringify([name, await this.#idOf(name)]))
      .digest('hex')
    const folder = join(dir, 'images', key.slice(0, 40))
    if (await isFolder(folder)) return folder
    if (pull === 'never')
      throw new RolloutError('runtime.image-missing', `Image ${name} is not on this node; set runtime.pull to missing`)
    const underway =
      this.#underway.get(folder) ?? this.#unpack(name, folder).finally(() => this.#underway.delete(folder))
    this.#underway.set(folder, underway)
    await orAborted(underway, signal)
    return folder
  }

  async #unpack(name: string, folder: string): Promise<void> {
    const { dir, program, dockerSocket } = this.#options
    await makeDirectories(join(dir, 'images'), 0o700)
    const draft = `${folder}.${randomUUID()}`
    await mkdir(draft, { mode: 0o700 })
    const env = {
      ...HOST_ENV,
      HOME: draft,
      APPTAINER_CONFIGDIR: join(draft, 'config'),
      APPTAINER_TMPDIR: draft,
      DOCKER_HOST: `unix://${dockerSocket}`,
      LC_ALL: 'C.UTF-8',
    }
    const root = join(draft, 'root')
    try {
      const build = ['--silent', 'build', '--disable-cache', '--sandbox', root, name]
      const { exitCode, stderr } = await runProgram([...program, ...build], { env })
      if (exitCode !== 0) {
        const reason = stderr.trim().split('\n').at(-1) || `apptainer ended with ${exitCode}`
        throw new RolloutError('runtime.image-missing', `Image ${name} cannot be fetched: ${reason}`)
      }
      await chmod(root, 0o755)
      // Another process may have unpacked the same image meanwhile.
      await rename(root, folder).catch(ignoreErrno('EEXIST', 'ENOTEMPTY'))
    } finally {
      await removeTree(draft)
    }
  }

  /** Returns undefined for an image that does not come from the local engine. */
  async #idOf(name: string): Promise<string | undefined> {
    const local = localImageName(name)
    if (local === undefined) return undefined
    const { dockerSocket } = this.#options
    const answer = await requestEngine(dockerSocket, `/images/${encodeURI(local)}/json`).catch((cause: unknown) => {
      const reason = cause instanceof Error ? cause.message : String(cause)
      const message = `Image ${name}: the engine at ${dockerSocket} does not respond: ${reason}; check runtime.dockerSocket`
      throw new RolloutError('runtime.image-missing', message, { cause })
    })
    const id = answer.status === 200 ? (JSON.parse(answer.body) as { Id?: unknown }).Id : undefined
    if (typeof id === 'string') return id
    throw new RolloutError('runtime.image-missing', `Image ${local} is not in the engine at ${dockerSocket}.`)
  }
}

const ENGINE_MS = 10_000

function requestEngine(socketPath: string, path: string): Promise<{ status: number; body: string }> {
  return new Promise((resolve, reject) => {
    const call = request({ socketPath, path, timeout: ENGINE_MS }, (response) => {
      let body = ''
      response
        .setEncoding('utf8')
        .on('data', (text: string) => (body += text))
        .on('end', () => resolve({ status: response.statusCode ?? 0, body }))
        .on('error', reject)
    })
    call.on('timeout', () => call.destroy(new Error('no response in time'))).on('error', reject)
    call.end()
  })
}
