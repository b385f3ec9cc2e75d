import { createHash } from 'node:crypto'
import { succeeds } from '../../../lib/async/succeeds.ts'
import { orAborted } from '../../../lib/async/until-aborted.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { PrepareAction } from '../../../model/task.ts'
import { digestTree } from '../../harness/install/digest-tree.ts'
import { prepareSandbox, type PrepareDeps, type PrepareOptions } from './prepare-sandbox.ts'
import type { Runtime, Sandbox, SandboxSpec } from '../runtimes/runtime.ts'
import { namesSession } from '../../session/session-environment.ts'

/** A prepared sandbox, and whether it was started from a snapshot. */
export interface PreparedSandbox {
  sandbox: Sandbox
  isWarm: boolean
}

export interface StartOptions extends PrepareOptions {
  /** Whether the steps start processes, which a snapshot does not contain. Absent: no. */
  startsProcesses?: boolean
}

/**
 * Starts prepared sandboxes. The first sandbox runs the prepare steps; its files are stored as a snapshot, named by the
 * steps, the uploaded files and the image, and later sandboxes start from it. Concurrent starts prepare once. Steps
 * that start a process or depend on the session cannot be reused.
 */
export class WarmStarts {
  readonly #runtime: Runtime
  readonly #deps: PrepareDeps
  /**
   * Snapshots that are being looked up or created. The promises resolve when another caller may try, and never reject.
   */
  readonly #underway = new Map<string, Promise<void>>()
  /** Snapshots that existed at their last use. */
  readonly #ready = new Set<string>()

  constructor(runtime: Runtime, deps: PrepareDeps = {}) {
    this.#runtime = runtime
    this.#deps = deps
  }

  async start(
    spec: SandboxSpec,
    actions: readonly PrepareAction[],
    signal: AbortSignal,
    { startsProcesses = false, ...options }: StartOptions = {},
  ): Promise<PreparedSandbox> {
    const mayWarm = !startsProcesses && actions.length > 0 && !actions.some(namesSession)
    if (!this.#runtime.capabilities.supportsSnapshots || !mayWarm) {
      return { sandbox: await this.#startCold(spec, actions, signal, options), isWarm: false }
    }
    const snapshot = await snapshotName(spec, actions)
    for (;;) {
      if (this.#ready.has(snapshot)) {
        const sandbox = await this.#startWarm(spec, snapshot, signal)
        if (sandbox !== undefined) return { sandbox, isWarm: true }
        this.#ready.delete(snapshot)
      }
      const underway = this.#underway.get(snapshot)
      if (underway === undefined) return this.#startFirst(spec, { snapshot, actions, options }, signal)
      await orAborted(underway, signal)
    }
  }

  /** Other callers wait meanwhile. Must be called in the same tick in which no promise was found in `#underway`. */
  async #startFirst(
    spec: SandboxSpec,
    { snapshot, actions, options }: { snapshot: string; actions: readonly PrepareAction[]; options: PrepareOptions },
    signal: AbortSignal,
  ): Promise<PreparedSandbox> {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#underway.set(snapshot, promise)
    try {
      const warm = await this.#startWarm(spec, snapshot, signal)
      const sandbox = warm ?? (await this.#startCold(spec, actions, signal, options))
      // A failed snapshot only makes the next start slower.
      if (warm !== undefined || (await succeeds(sandbox.snapshot(snapshot)))) this.#ready.add(snapshot)
      return { sandbox, isWarm: warm !== undefined }
    } finally {
      this.#underway.delete(snapshot)
      resolve()
    }
  }

  async #startWarm(spec: SandboxSpec, snapshot: string, signal: AbortSignal): Promise<Sandbox | undefined> {
    try {
      return await this.#runtime.start({ ...spec, snapshot }, signal)
    } catch (error) {
      if (error instanceof RolloutError && error.failure.code === 'runtime.image-missing') return undefined
      throw error
    }
  }

  async #startCold(
    spec: SandboxSpec,
    actions: readonly PrepareAction[],
    signal: AbortSignal,
    options: PrepareOptions,
  ): Promise<Sandbox> {
    const sandbox = await this.#runtime.start(spec, signal)
    try {
      await prepareSandbox(sandbox, actions, signal, { ...this.#deps, ...options })
      return sandbox
    } catch (error) {
      await sandbox.stop()
      throw error
    }
  }
}

async function snapshotName(spec: SandboxSpec, actions: readonly PrepareAction[]): Promise<string> {
  const hash = createHash('sha256')
  hash.update(JSON.stringify([spec.image ?? null, spec.workdir, spec.snapshot ?? null, spec.env, spec.mounts]))
  for (const action of actions) {
    hash.update(JSON.stringify(action))
    // A commit never changes, and a command is identified by its text.
    if (action.type === 'upload_file' || action.type === 'upload_dir') hash.update(await digestTree(action.source))
  }
  return `prepared-${hash.digest('hex').slice(0, 40)}`
}
