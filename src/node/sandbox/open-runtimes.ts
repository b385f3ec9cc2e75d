import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { errnoOf } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { RuntimeSpec } from '../../model/task.ts'
import { BUBBLEWRAP_REMEDY } from './bubblewrap-program/find-bubblewrap.ts'
import { createCustomRuntime, kindOf, loadRuntime } from './load-runtime.ts'
import type { PrepareDeps } from './prepare/prepare-sandbox.ts'
import { runtimes } from './runtimes/index.ts'
import type { Runtime } from './runtimes/runtime.ts'
import { backendOf } from './prepare/sandbox-spec.ts'
import type { OpenRuntime } from '../session/sandboxed-session.ts'
import { WarmStarts } from './prepare/warm-start.ts'

export interface OpenRuntimesOptions {
  /** Each kind keeps its sandboxes in a folder of its own below. */
  dir: string
  /** For tasks that do not say. */
  usual: string
  /** Settings of a kind, besides its name. May throw `runtime.unavailable`: a program of it cannot be had. */
  settingsOf(kind: string): Promise<Readonly<Record<string, unknown>>>
  /** Real paths of the modules whose code is trusted. */
  modules: readonly string[]
  prepare: PrepareDeps
  /** Whether tasks may ask for `local`. Where it is the usual kind, they may in any case. */
  allowsLocal: boolean
  /** Most sandboxes with running commands at a time; absent: see `RuntimeDeps`. */
  sandboxes?: number
  now(): number
}

const CHECK_MS = 30_000

/** Why a task does not get `local` by asking for it. */
const LOCAL_REFUSAL =
  '"local" isolates nothing, and this node runs as root: the agent could do anything on this machine. Choose local for the node with --runtime local or node.runtime, or run the node as an ordinary user.'

/** The kinds of sandbox a node has, each opened when it is first wanted and found to work. */
export class OpenRuntimes implements AsyncDisposable {
  readonly #options: OpenRuntimesOptions
  readonly #open = new Map<string, Promise<OpenRuntime>>()

  constructor(options: OpenRuntimesOptions) {
    this.#options = options
  }

  /** Throws `config.invalid` for a kind there is not, `runtime.unavailable` for one that cannot run here. */
  async open(spec: RuntimeSpec | null | undefined): Promise<OpenRuntime> {
    if (spec?.import_path != null) return this.#openModule(spec.import_path, spec.kwargs)
    const kind = backendOf(spec) ?? this.#options.usual
    if (!runtimes.kinds.includes(kind)) {
      const kinds = runtimes.kinds.join(', ')
      throw new RolloutError('config.invalid', `runtime.backend: "${kind}" is none of ${kinds}.`)
    }
    if (kind === 'local' && this.#options.usual !== 'local' && !this.#options.allowsLocal)
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
      // What is missing may be there the next time.
      open.catch(() => this.#open.delete(key))
    }
    return open
  }

  async #check(create: () => Promise<Runtime>): Promise<OpenRuntime> {
    await using owned = new AsyncDisposableStack()
    const runtime = owned.use(await create())
    const check = await runtime.check(AbortSignal.timeout(CHECK_MS))
    if (!check.isUsable) {
      throw new RolloutError('runtime.unavailable', `${runtime.kind} cannot run here: ${check.reason}`)
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
    return { dir: join(dir, kind), now: () => this.#options.now(), ...(sandboxes === undefined ? {} : { sandboxes }) }
  }

  /** Kinds that were used with this folder before, whether or not they can be used now. */
  async used(): Promise<Runtime[]> {
    const names = await readdir(this.#options.dir).catch((error: unknown) => {
      if (errnoOf(error) === 'ENOENT') return []
      throw error
    })
    const kinds = names.filter((name) => runtimes.kinds.includes(name))
    const opened = await Promise.all(
      kinds.map((kind) =>
        this.#once(kind, () => this.#create(kind)).then(
          ({ runtime }) => runtime,
          () => undefined,
        ),
      ),
    )
    return opened.filter((runtime) => runtime !== undefined)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const opened = await Promise.allSettled(this.#open.values())
    for (const result of opened) {
      if (result.status === 'fulfilled') await result.value.runtime[Symbol.asyncDispose]()
    }
  }
}

/** For tasks that name no runtime, unless the operator chooses another one. */
export const DEFAULT_RUNTIME = 'bubblewrap'

/**
 * Checks that the default runtime works on this machine. `local` never takes its place: it isolates nothing. Throws
 * `runtime.unavailable` that says why and what to do.
 */
export async function assertDefaultRuntime(opened: Pick<OpenRuntimes, 'open'>): Promise<void> {
  try {
    await opened.open(undefined)
  } catch (error) {
    if (!(error instanceof RolloutError) || error.code !== 'runtime.unavailable') throw error
    const others = runtimes.kinds.filter((kind) => kind !== DEFAULT_RUNTIME && kind !== 'local').join(', ')
    const message = [
      `There is no isolation for agents on this machine: ${error.message}`,
      `${BUBBLEWRAP_REMEDY}, or choose another runtime with --runtime or node.runtime: ${others}.`,
      'The runtime "local" runs agents as your own user, without any isolation.',
    ].join('\n')
    throw new RolloutError('runtime.unavailable', message, { cause: error })
  }
}
