import { mkdir } from 'node:fs/promises'
import { isAbsolute, join, normalize } from 'node:path/posix'
import * as z from 'zod'
import { RolloutError } from '../../../../model/failure.ts'
import type { SocketServer } from '../../linux/network/sandbox-sockets.ts'
import type { Records, SandboxRecord } from '../../linux/records.ts'
import type { CopyLimits, Execution, ExecSpec, Sandbox, SandboxStats } from '../runtime.ts'
import { ContainerEngineError, ignoreStatus, type ContainerEngine } from './container-engine.ts'
import { startInContainer } from './execution.ts'
import { ContainerFiles } from './files.ts'
import { runInside } from './inside.ts'
import type { ProcessTracker } from './process-tracker.ts'

const TOOL_TIMEOUT_MS = 60_000

const Sized = z.looseObject({ SizeRw: z.number().nullish() })

export interface ImageTag {
  repo: string
  tag: string
}

export interface DockerSandboxParts {
  engine: ContainerEngine
  containerId: string
  /** In the format of the engine. */
  user: string
  record: SandboxRecord
  records: Records
  folder: string
  workdir: string
  /** Environment of all commands. */
  env: Readonly<Record<string, string>>
  owner: { uid: number; gid: number }
  tracker: ProcessTracker
  servers: readonly SocketServer[]
  socketPort: number | undefined
  /** Whether the engine can pause the container; without root, that needs control groups v2. */
  canPause: boolean
  /**
   * Stores a snapshot under the name, unless it exists. `commit` creates the image and returns its additional bytes.
   */
  keep(snapshot: string, commit: (tag: ImageTag) => Promise<number>): Promise<void>
  /** Ends all processes and removes the container. */
  remove(): Promise<void>
  now(): number
}

export class DockerSandbox implements Sandbox {
  readonly #parts: DockerSandboxParts
  readonly #files: ContainerFiles
  #execs = 0
  #freezing: Promise<void> | undefined
  #stopping: Promise<void> | undefined

  constructor(parts: DockerSandboxParts) {
    this.#parts = parts
    const { engine, containerId, owner } = parts
    this.#files = new ContainerFiles({
      engine,
      containerId,
      owner,
      runInside: (command) => this.#runInside(command),
    })
  }

  get id(): string {
    return this.#parts.record.id
  }

  get workdir(): string {
    return this.#parts.workdir
  }

  get socketPort(): number | undefined {
    return this.#parts.socketPort
  }

  async exec(spec: ExecSpec): Promise<Execution> {
    this.#assertAlive()
    if (this.#freezing !== undefined)
      throw new RolloutError('runtime.gone', `Sandbox ${this.id} is frozen and runs no commands`)
    const { engine, containerId, user, tracker, env } = this.#parts
    const folder = join(this.#parts.folder, 'exec')
    await mkdir(folder, { recursive: true, mode: 0o700 })
    const id = `x${(this.#execs += 1)}`
    try {
      return await startInContainer(
        { ...spec, cwd: this.#path(spec.cwd ?? '.'), env: { ...env, ...spec.env } },
        { engine, containerId, user, tracker, id, folder, now: () => this.#parts.now() },
      )
    } catch (error) {
      this.#assertAlive()
      throw this.#toGone(error)
    }
  }

  async upload(source: string, target: string, signal: AbortSignal): Promise<void> {
    this.#assertAlive()
    await this.#files.upload(source, this.#path(target), signal)
  }

  async download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void> {
    this.#assertAlive()
    await this.#files.download(this.#path(source), target, limits, signal)
  }

  async writeFile(path: string, data: string | Uint8Array, options: { mode?: number } = {}): Promise<void> {
    this.#assertAlive()
    await this.#files.writeFile(this.#path(path), data, options.mode ?? 0o644, this.#parts.now() / 1000)
  }

  async readFile(path: string, options: { maxBytes: number }): Promise<Buffer> {
    this.#assertAlive()
    return this.#files.readFile(this.#path(path), options.maxBytes)
  }

  async stats(): Promise<SandboxStats> {
    this.#assertAlive()
    const diskBytes = await this.#writtenBytes().catch((error: unknown) => this.#throwGone(error))
    const counted = this.#freezing === undefined ? await this.#parts.tracker.stats() : {}
    return { ...counted, diskBytes }
  }

  async renew(leaseUntil: number): Promise<void> {
    this.#assertAlive()
    const { record, records } = this.#parts
    record.leaseUntil = leaseUntil
    await records.write(record)
  }

  async snapshot(name: string): Promise<void> {
    this.#assertAlive()
    await this.#parts.keep(name, (tag) => this.#commit(tag)).catch((error: unknown) => this.#throwGone(error))
  }

  freeze(): Promise<void> {
    this.#assertAlive()
    this.#freezing ??= this.#freeze()
    return this.#freezing
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop()
    return this.#stopping
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  async #commit({ repo, tag }: ImageTag): Promise<number> {
    const { engine, containerId, canPause } = this.#parts
    const existing = await engine.call('GET', `/images/${repo}:${tag}/json`).catch(ignoreStatus(404))
    const bytes = await this.#writtenBytes()
    if (existing !== undefined) return bytes ?? 0
    const query = { container: containerId, repo, tag, pause: String(canPause), comment: 'polar snapshot' }
    await engine.call('POST', '/commit', { query, json: {} })
    return bytes ?? 0
  }

  /** Returns undefined if the engine does not report it. */
  async #writtenBytes(): Promise<number | undefined> {
    const { engine, containerId } = this.#parts
    const answer = await engine.call('GET', `/containers/${containerId}/json`, { query: { size: 'true' } })
    return Sized.parse(answer).SizeRw ?? undefined
  }

  /** A stopped container has no processes, but keeps its files. */
  async #freeze(): Promise<void> {
    const { engine, containerId, servers } = this.#parts
    for (const server of servers) server.close()
    const query = { signal: 'SIGKILL' }
    // The engine rejects this for a container that has stopped.
    await engine.call('POST', `/containers/${containerId}/kill`, { query }).catch(ignoreStatus(409, 500))
    await engine.call('POST', `/containers/${containerId}/wait`).catch((error: unknown) => this.#throwGone(error))
  }

  async #stop(): Promise<void> {
    for (const server of this.#parts.servers) server.close()
    await this.#parts.remove()
  }

  /** Runs a program of the container as its user. */
  async #runInside(command: readonly string[]): ReturnType<typeof runInside> {
    const { engine, containerId, user, tracker } = this.#parts
    if (this.#freezing !== undefined) return { exitCode: 255, stdout: '', stderr: 'the sandbox is frozen' }
    using _ = await tracker.expect()
    return await runInside(engine, containerId, { command, user }, AbortSignal.timeout(TOOL_TIMEOUT_MS))
  }

  #path(path: string): string {
    return isAbsolute(path) ? normalize(path) : join(this.#parts.workdir, path)
  }

  #assertAlive(): void {
    if (this.#stopping !== undefined) throw new RolloutError('runtime.gone', `Sandbox ${this.id} was stopped`)
  }

  #throwGone(error: unknown): never {
    throw this.#toGone(error)
  }

  #toGone(error: unknown): unknown {
    if (!(error instanceof ContainerEngineError)) return error
    return new RolloutError('runtime.gone', `Sandbox ${this.id} no longer responds: ${error.message}`, {
      cause: error,
    })
  }
}
