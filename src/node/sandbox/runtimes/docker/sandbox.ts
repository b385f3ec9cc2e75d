import * as z from 'zod'
import { BaseSandbox, type SandboxParts } from '../../linux/base-sandbox.ts'
import type { SocketServer } from '../../linux/network/sandbox-sockets.ts'
import type { CompleteExecSpec } from '../../linux/process/render-exec.ts'
import type { Execution, SandboxStats } from '../runtime.ts'
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

export interface DockerSandboxParts extends SandboxParts {
  engine: ContainerEngine
  containerId: string
  /** In the format of the engine. */
  user: string
  owner: { uid: number; gid: number }
  tracker: ProcessTracker
  servers: readonly SocketServer[]
  /** Whether the engine can pause the container; without root, that needs control groups v2. */
  canPause: boolean
  /**
   * Stores a snapshot under the name, unless it exists. `commit` creates the image and returns its additional bytes.
   */
  keep(snapshot: string, commit: (tag: ImageTag) => Promise<number>): Promise<void>
  /** Ends all processes and removes the container. */
  remove(): Promise<void>
}

export class DockerSandbox extends BaseSandbox<DockerSandboxParts> {
  protected readonly files = new ContainerFiles({
    ...this.parts,
    runInside: (command) => this.#runInside(command),
  })

  protected startCommand(spec: CompleteExecSpec, at: { id: string; folder: string }): Promise<Execution> {
    return startInContainer(spec, { ...this.parts, ...at })
  }

  protected async measure(): Promise<SandboxStats> {
    const diskBytes = await this.#writtenBytes()
    const counted = this.isFrozen ? {} : await this.parts.tracker.stats()
    return { ...counted, diskBytes }
  }

  protected storeSnapshot(name: string): Promise<void> {
    return this.parts.keep(name, (tag) => this.#commit(tag))
  }

  /** A stopped container has no processes, but keeps its files. */
  protected async endProcesses(): Promise<void> {
    const { engine, containerId, servers } = this.parts
    for (const server of servers) server.close()
    const query = { signal: 'SIGKILL' }
    // The engine rejects this for a container that has stopped.
    await engine.call('POST', `/containers/${containerId}/kill`, { query }).catch(ignoreStatus(409, 500))
    await engine.call('POST', `/containers/${containerId}/wait`).catch((error: unknown) => this.throwGone(error))
  }

  protected async close(): Promise<void> {
    for (const server of this.parts.servers) server.close()
    await this.parts.remove()
  }

  protected override isEngineError(error: unknown): boolean {
    return error instanceof ContainerEngineError
  }

  async #commit({ repo, tag }: ImageTag): Promise<number> {
    const { engine, containerId, canPause } = this.parts
    const existing = await engine.call('GET', `/images/${repo}:${tag}/json`).catch(ignoreStatus(404))
    const bytes = await this.#writtenBytes()
    if (existing !== undefined) return bytes ?? 0
    const query = { container: containerId, repo, tag, pause: String(canPause), comment: 'polar snapshot' }
    await engine.call('POST', '/commit', { query, json: {} })
    return bytes ?? 0
  }

  /** Returns undefined if the engine does not report it. */
  async #writtenBytes(): Promise<number | undefined> {
    const { engine, containerId } = this.parts
    const answer = await engine.call('GET', `/containers/${containerId}/json`, { query: { size: 'true' } })
    return Sized.parse(answer).SizeRw ?? undefined
  }

  /** Runs a program of the container as its user. */
  async #runInside(command: readonly string[]): ReturnType<typeof runInside> {
    const { engine, containerId, user, tracker } = this.parts
    if (this.isFrozen) return { exitCode: 255, stdout: '', stderr: 'the sandbox is frozen' }
    using _ = await tracker.expect()
    return await runInside(engine, containerId, { command, user }, AbortSignal.timeout(TOOL_TIMEOUT_MS))
  }
}
