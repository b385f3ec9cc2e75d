import { realpath } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import type { Plug } from '../../../lib/plug.ts'
import { runProgram } from '../../../lib/process/run-program.ts'
import { RolloutError } from '../../../model/failure.ts'
import { trySandbox } from '../linux/check-sandbox.ts'
import { isImageName } from '../linux/files/image-names.ts'
import { HOST_ENV, INSIDE_ID } from '../linux/files/paths.ts'
import { snapshotConfig } from '../linux/files/snapshots.ts'
import { usersConfig, type SandboxUser } from '../linux/limits/sandbox-users.ts'
import { NamespacedRuntime, type Launch } from '../linux/namespaced-runtime.ts'
import { FetchedImages } from './apptainer/fetched-images.ts'
import { imageAt, launch, LAYER, type Privileges } from './apptainer/launch.ts'
import { findArchitecture } from './apptainer/steps.ts'
import type { Runtime, RuntimeCheck, RuntimeDeps, SandboxSpec } from './runtime.ts'

const ApptainerConfig = z.strictObject({
  kind: z.literal('apptainer'),
  program: z
    .tuple([z.string().min(1)], z.string())
    .default(['apptainer'])
    .describe('Command that starts Apptainer: a program and its first arguments'),
  image: z.string().optional().describe('SIF file, root folder or name of the image of tasks that name none'),
  pull: z
    .enum(['never', 'missing'])
    .default('missing')
    .describe('When to fetch and unpack an image named by docker://, oras:// or docker-daemon:'),
  dockerSocket: z
    .string()
    .default('/var/run/docker.sock')
    .describe("Unix socket of the Docker engine, or of Podman's service, for images named by docker-daemon:"),
  ...usersConfig,
  ...snapshotConfig,
})
type ApptainerConfig = z.infer<typeof ApptainerConfig>

export const apptainer: Plug<typeof ApptainerConfig, RuntimeDeps, Runtime> = {
  config: ApptainerConfig,
  create: (config, deps) => new ApptainerRuntime(config, deps),
}

/**
 * Apptainer assembles the sandbox: image, writable layer, mounts, namespaces. It has no daemon; each sandbox has one
 * Apptainer process and ends with it. Its `exec` is not used for commands: when the client is killed, the command
 * inside survives. Commands enter from outside, each in a process namespace of its own, so that killing the first
 * process of that namespace ends all of it, and in a user namespace without capabilities.
 */
class ApptainerRuntime extends NamespacedRuntime {
  readonly kind = 'apptainer'
  protected readonly images = 'required'
  readonly #config: ApptainerConfig
  readonly #fetched: FetchedImages

  constructor(config: ApptainerConfig, deps: RuntimeDeps) {
    super(config, deps)
    this.#config = config
    this.#fetched = new FetchedImages({ ...config, dir: deps.dir })
  }

  async check(signal: AbortSignal): Promise<RuntimeCheck> {
    const { program, image, uid } = this.#config
    const architecture = findArchitecture()
    if (architecture === undefined)
      return { isUsable: false, reason: `the architecture ${process.arch} is not supported` }
    const tools = ['perl', 'nsenter', 'tar', 'mkfifo', ...(this.cgroups === undefined ? ['prlimit'] : [])]
    const missing = await this.findMissing(tools, signal)
    if (missing !== undefined) return { isUsable: false, reason: missing }
    const version = await runProgram([...program, 'version'], { env: HOST_ENV, signal })
    if (version.exitCode !== 0) {
      const lastLine = version.stderr.trim().split('\n').at(-1) || `exit code ${version.exitCode}`
      const reason = lastLine.includes('ENOENT') ? 'it is not installed: install it, or set runtime.program' : lastLine
      return { isUsable: false, reason: `${program.join(' ')} cannot be started: ${reason}` }
    }
    const notes = [
      `apptainer ${version.stdout.trim()}`,
      this.isRoot
        ? `the node runs as root; each sandbox has a user of its own from ${uid} up, or ${uid} with a snapshot or a writable mount`
        : 'the node does not run as root; sandboxes run as its user, without capabilities, keep its groups, and have a share of its limits (inotify, signals, processes)',
      ...this.commonNotes,
    ]
    if (image === undefined)
      return { isUsable: true, notes: [...notes, 'no sandbox was started: set runtime.image to test one'] }
    const failure = await trySandbox(this, { image, now: this.deps.now() }, signal)
    return failure === undefined ? { isUsable: true, notes } : { isUsable: false, reason: failure }
  }

  protected async prepare(spec: SandboxSpec, signal: AbortSignal): Promise<Launch> {
    const image = await this.#imageOf(spec, signal)
    return async ({ record, folder, user, below }) => {
      const options = {
        program: this.#config.program,
        privileges: this.#privilegesOf(user),
        image,
        layers: await Promise.all(below.map((snapshot) => realpath(join(snapshot, LAYER)))),
        record,
        folder: await realpath(folder),
        hidden: await realpath(this.deps.dir),
        quotas: this.quotasOf(user),
        spawn: this.spawn,
      }
      return launch(spec, options, signal)
    }
  }

  async #imageOf(spec: SandboxSpec, signal: AbortSignal): Promise<string> {
    const image = spec.image ?? this.#config.image
    if (image !== undefined) return imageAt(isImageName(image) ? await this.#fetched.require(image, signal) : image)
    throw new RolloutError(
      'runtime.unsupported',
      'Apptainer needs an image: name one in the task, or set runtime.image',
    )
  }

  #privilegesOf(user: SandboxUser | undefined): Privileges {
    const architecture = findArchitecture()
    const own = process.getuid?.()
    if (architecture === undefined || own === undefined)
      throw new RolloutError('runtime.unsupported', `Apptainer is not supported on the architecture ${process.arch}`)
    if (user !== undefined)
      return { architecture, isRoot: true, owner: user.uid, inside: { user: INSIDE_ID, group: INSIDE_ID } }
    return { architecture, isRoot: false, owner: own, inside: { user: own, group: process.getgid?.() ?? own } }
  }
}
