import { createHash } from 'node:crypto'
import { RolloutError } from '../model/failure.ts'
import type { PrepareAction } from '../model/task.ts'
import { digestTree } from './digest-tree.ts'
import { prepareSandbox } from './prepare-sandbox.ts'
import type { Runtime, Sandbox, SandboxSpec } from './runtimes/runtime.ts'

/** A sandbox that is ready, and whether its preparation was found done. */
export interface PreparedSandbox {
  sandbox: Sandbox
  isWarm: boolean
}

/**
 * Starts sandboxes that have been prepared. The first of a kind pays for the preparation; what it left on disk is kept
 * under a name made of the steps, the files they bring and the image, and the next ones begin there. Two that come at the
 * same time prepare once. Steps that start a process or depend on more than their words must not be warmed.
 */
export class WarmStarts {
  readonly #runtime: Runtime
  readonly #underway = new Map<string, Promise<void>>()

  constructor(runtime: Runtime) {
    this.#runtime = runtime
  }

  async start(spec: SandboxSpec, actions: readonly PrepareAction[], signal: AbortSignal): Promise<PreparedSandbox> {
    if (!this.#runtime.capabilities.supportsSnapshots || actions.length === 0) {
      return { sandbox: await this.#startCold(spec, actions, signal), isWarm: false }
    }
    const snapshot = await snapshotName(spec, actions)
    await this.#underway.get(snapshot)?.catch(() => {})
    const warm = await this.#startWarm(spec, snapshot, signal)
    if (warm !== undefined) return { sandbox: warm, isWarm: true }
    const { promise, resolve } = Promise.withResolvers<void>()
    if (!this.#underway.has(snapshot)) this.#underway.set(snapshot, promise)
    try {
      const sandbox = await this.#startCold(spec, actions, signal)
      await keep(sandbox, snapshot)
      return { sandbox, isWarm: false }
    } finally {
      if (this.#underway.get(snapshot) === promise) this.#underway.delete(snapshot)
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

  async #startCold(spec: SandboxSpec, actions: readonly PrepareAction[], signal: AbortSignal): Promise<Sandbox> {
    const sandbox = await this.#runtime.start(spec, signal)
    try {
      await prepareSandbox(sandbox, actions, signal)
      return sandbox
    } catch (error) {
      await sandbox.stop()
      throw error
    }
  }
}

/** Being slower next time is no reason to fail now. */
async function keep(sandbox: Sandbox, snapshot: string): Promise<void> {
  await sandbox.snapshot(snapshot).catch(() => {})
}

async function snapshotName(spec: SandboxSpec, actions: readonly PrepareAction[]): Promise<string> {
  const hash = createHash('sha256')
  hash.update(JSON.stringify([spec.image ?? null, spec.workdir, spec.snapshot ?? null, spec.env]))
  for (const action of actions) {
    hash.update(JSON.stringify(action))
    if (action.type !== 'exec') hash.update(await digestTree(action.source))
  }
  return `prepared-${hash.digest('hex').slice(0, 40)}`
}
