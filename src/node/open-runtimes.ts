import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { errnoOf } from '../lib/errno.ts'
import { RolloutError } from '../model/failure.ts'
import type { RuntimeSpec } from '../model/task.ts'
import { createCustomRuntime, kindOf, loadRuntime } from './load-runtime.ts'
import type { PrepareDeps } from './prepare-sandbox.ts'
import { runtimes } from './runtimes/index.ts'
import type { Runtime } from './runtimes/runtime.ts'
import { backendOf } from './sandbox-order.ts'
import type { OpenRuntime } from './session-work.ts'
import { WarmStarts } from './warm-start.ts'

export interface OpenRuntimesOptions {
  /** Each kind keeps its sandboxes in a folder of its own below. */
  dir: string
  /** For tasks that do not say. */
  usual: string
  /** What the operator says of a kind, besides its name. */
  settings: Readonly<Record<string, Readonly<Record<string, unknown>>>>
  /** Real paths of the modules whose code is trusted. */
  modules: readonly string[]
  prepare: PrepareDeps
  now(): number
}

const CHECK_MS = 30_000

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
    return this.#once(kind, async () => this.#create(kind))
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

  #create(kind: string): Runtime {
    return runtimes.create(runtimes.config.parse({ kind, ...this.#options.settings[kind] }), this.#depsOf(kind))
  }

  #depsOf(kind: string) {
    return { dir: join(this.#options.dir, kind), now: () => this.#options.now() }
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
        this.#once(kind, async () => this.#create(kind)).then(
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

/** The best that works here: kept apart without a daemon, or else not at all. */
export async function usualRuntime(dir: string, now: () => number): Promise<{ kind: string; why?: string }> {
  const runtime = runtimes.create(runtimes.config.parse({ kind: 'bubblewrap' }), { dir: join(dir, 'bubblewrap'), now })
  await using _ = runtime
  const check = await runtime.check(AbortSignal.timeout(CHECK_MS))
  return check.isUsable ? { kind: runtime.kind } : { kind: 'local', why: check.reason }
}
