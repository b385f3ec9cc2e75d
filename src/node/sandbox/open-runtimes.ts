import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { RuntimeSpec } from '../../model/task.ts'
import { BUBBLEWRAP_REMEDY } from './bubblewrap-program/find-bubblewrap.ts'
import { createCustomRuntime, kindOf, loadRuntime } from './load-runtime.ts'
import type { PrepareDeps } from './prepare/prepare-sandbox.ts'
import { runtimes } from './runtimes/index.ts'
import type { Runtime } from './runtimes/runtime.ts'
import { backendOf } from './prepare/sandbox-spec.ts'
import type { OpenRuntime } from '../session/session-deps.ts'
import { WarmStarts } from './prepare/warm-start.ts'

export interface OpenRuntimesOptions {
  /** Parent of the folders of all kinds. */
  dir: string
  /** Runtime of tasks that name none. */
  defaultRuntime: string
  /** Returns the settings of a kind, except for `kind`. May throw `runtime.unavailable` if a program is missing. */
  settingsOf(kind: string): Promise<Readonly<Record<string, unknown>>>
  /** Real paths of trusted modules. */
  modules: readonly string[]
  prepare: PrepareDeps
  /** Whether tasks may request `local`. They always may if it is the default. */
  allowsLocal: boolean
  /** Most sandboxes that run commands at the same time; absent: see `RuntimeDeps`. */
  sandboxes?: number
  now(): number
}

const CHECK_MS = 30_000

/** Reason why a task cannot request `local`. */
const LOCAL_REFUSAL =
  '"local" isolates nothing, and this node runs as root: the agent could do anything on this machine. Choose local for the node with --runtime local or node.runtime, or run the node as an ordinary user.'

/** The runtimes of a node. Each is opened and checked at its first use. */
export class OpenRuntimes implements AsyncDisposable {
  readonly #options: OpenRuntimesOptions
  readonly #open = new Map<string, Promise<OpenRuntime>>()

  constructor(options: OpenRuntimesOptions) {
    this.#options = options
  }

  /**
   * Throws `config.invalid` for an unknown kind, `runtime.unavailable` for a kind that does not work on this machine.
   */
  async open(spec: RuntimeSpec | null | undefined): Promise<OpenRuntime> {
    if (spec?.import_path != null) return this.#openModule(spec.import_path, spec.kwargs)
    const kind = backendOf(spec) ?? this.#options.defaultRuntime
    if (!runtimes.kinds.includes(kind)) {
      const kinds = runtimes.kinds.join(', ')
      throw new RolloutError('config.invalid', `runtime.backend: "${kind}" is none of ${kinds}.`)
    }
    if (kind === 'local' && this.#options.defaultRuntime !== 'local' && !this.#options.allowsLocal)
      throw new RolloutError('config.invalid', `runtime.backend: ${LOCAL_REFUSAL}`)
    return this.#once(kind, () => this.#create(kind))
  }

  async #openModule(
    path: string,
    { volumes: _, ...settings }: Readonly<Record<string, unknown>>,
  ): Promise<OpenRuntime> {
    const plug = await loadRuntime(path, { allowed: this.#options.modules })
    const kind = kindOf(plug)
    return this.#once(`${kind} ${JSON.stringify(settings)}`, async () =>
      createCustomRuntime(plug, settings, this.#depsOf(kind)),
    )
  }

  #once(key: string, create: () => Promise<Runtime>): Promise<OpenRuntime> {
    let open = this.#open.get(key)
    if (open === undefined) {
      open = this.#check(create)
      this.#open.set(key, open)
      // A missing program may be installed later.
      open.catch(() => this.#open.delete(key))
    }
    return open
  }

  async #check(create: () => Promise<Runtime>): Promise<OpenRuntime> {
    await using owned = new AsyncDisposableStack()
    const runtime = owned.use(await create())
    const check = await runtime.check(AbortSignal.timeout(CHECK_MS))
    if (!check.isUsable) {
      throw new RolloutError('runtime.unavailable', `${runtime.kind} does not work on this machine: ${check.reason}`)
    }
    owned.move()
    return { runtime, starts: new WarmStarts(runtime, this.#options.prepare) }
  }

  async #create(kind: string): Promise<Runtime> {
    const settings = await this.#options.settingsOf(kind)
    return runtimes.create(runtimes.config.parse({ kind, ...settings }), this.#depsOf(kind))
  }

  #depsOf(kind: string) {
    const { dir, sandboxes } = this.#options
    return { dir: join(dir, kind), now: () => this.#options.now(), sandboxes }
  }

  /** Returns the runtimes that were used with this folder before and can be opened now. */
  async used(): Promise<Runtime[]> {
    const names = (await readdir(this.#options.dir).catch(ignoreErrno('ENOENT'))) ?? []
    const kinds = names.filter((name) => runtimes.kinds.includes(name))
    const opened = await Promise.allSettled(kinds.map((kind) => this.#once(kind, () => this.#create(kind))))
    return opened.flatMap((result) => (result.status === 'fulfilled' ? [result.value.runtime] : []))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const opened = await Promise.allSettled(this.#open.values())
    for (const result of opened) {
      if (result.status === 'fulfilled') await result.value.runtime[Symbol.asyncDispose]()
    }
  }
}

/** Runtime of tasks that name none, unless the operator chooses another. */
export const DEFAULT_RUNTIME = 'bubblewrap'

/**
 * Checks that the default runtime works on this machine. `local` is no substitute, because it isolates nothing. Throws
 * `runtime.unavailable` with the reason and the remedy.
 */
export async function assertDefaultRuntime(opened: Pick<OpenRuntimes, 'open'>): Promise<void> {
  try {
    await opened.open(undefined)
  } catch (error) {
    if (!(error instanceof RolloutError) || error.code !== 'runtime.unavailable') throw error
    const others = runtimes.kinds.filter((kind) => kind !== DEFAULT_RUNTIME && kind !== 'local').join(', ')
    const message = [
      `No isolation for agents is available on this machine: ${error.message}`,
      `${BUBBLEWRAP_REMEDY}, or choose another runtime with --runtime or node.runtime: ${others}.`,
      'The runtime "local" runs agents as your own user, without any isolation.',
    ].join('\n')
    throw new RolloutError('runtime.unavailable', message, { cause: error })
  }
}
