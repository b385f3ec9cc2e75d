import { createHash } from 'node:crypto'
import { orAborted } from '../../../lib/async/until-aborted.ts'
import { RolloutError } from '../../../model/failure.ts'
import type { PrepareAction } from '../../../model/task.ts'
import { digestTree } from '../../harness/install/digest-tree.ts'
import { prepareSandbox, type PrepareDeps, type PrepareOptions } from './prepare-sandbox.ts'
import type { Runtime, Sandbox, SandboxSpec } from '../runtimes/runtime.ts'
import { namesSession } from '../../session/session-environment.ts'

/** A sandbox that is ready, and whether its preparation was found done. */
export interface PreparedSandbox {
  sandbox: Sandbox
  isWarm: boolean
}

export interface StartOptions extends PrepareOptions {
  /** Whether the steps start processes, which no snapshot keeps. Absent: no. */
  startsProcesses?: boolean
}

/**
 * Starts sandboxes that have been prepared. The first of a kind pays for the preparation; what it left on disk is kept
 * under a name made of the steps, the files they bring and the image, and the next ones begin there. Two that come at the
 * same time prepare once. Steps that start a process or depend on more than their words must not be warmed.
 */
export class WarmStarts {
  readonly #runtime: Runtime
  readonly #deps: PrepareDeps
  /** Snapshots that are being looked for or made; they settle when somebody else may try, and never reject. */
  readonly #underway = new Map<string, Promise<void>>()
  /** Those that were there the last time. */
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

  /** Others wait meanwhile. Called without a pause since nobody was found to be underway. */
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
      if (warm !== undefined || (await isKept(sandbox, snapshot))) this.#ready.add(snapshot)
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

/** Being slower next time is no reason to fail now. */
function isKept(sandbox: Sandbox, snapshot: string): Promise<boolean> {
  return sandbox.snapshot(snapshot).then(
    () => true,
    () => false,
  )
}

async function snapshotName(spec: SandboxSpec, actions: readonly PrepareAction[]): Promise<string> {
  const hash = createHash('sha256')
  hash.update(JSON.stringify([spec.image ?? null, spec.workdir, spec.snapshot ?? null, spec.env, spec.mounts]))
  for (const action of actions) {
    hash.update(JSON.stringify(action))
    // What a commit is does not change, and a command is its words.
    if (action.type === 'upload_file' || action.type === 'upload_dir') hash.update(await digestTree(action.source))
  }
  return `prepared-${hash.digest('hex').slice(0, 40)}`
}
