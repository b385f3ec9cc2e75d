import type { Clock } from '../../lib/async/clock.ts'
import type { Sandbox } from './runtimes/runtime.ts'
import { LEASE_MS } from './prepare/sandbox-spec.ts'

/** Renews the lease of every live sandbox of this node. */
export class SandboxLeases implements Disposable {
  readonly #clock: Clock
  readonly #problem: (error: unknown) => void
  readonly #sandboxes = new Set<Sandbox>()
  #stop: () => void

  constructor(clock: Clock, problem: (error: unknown) => void) {
    this.#clock = clock
    this.#problem = problem
    this.#stop = this.#schedule()
  }

  add(sandbox: Sandbox): Disposable {
    this.#sandboxes.add(sandbox)
    return { [Symbol.dispose]: () => void this.#sandboxes.delete(sandbox) }
  }

  #schedule(): () => void {
    return this.#clock.after(LEASE_MS / 4, () => {
      const until = this.#clock.now() + LEASE_MS
      for (const sandbox of this.#sandboxes) sandbox.renew(until).catch(this.#problem)
      this.#stop = this.#schedule()
    })
  }

  [Symbol.dispose](): void {
    this.#stop()
  }
}
