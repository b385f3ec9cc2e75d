import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { loadProgram } from '../../../../lib/process/load-program.ts'
import type { SandboxStats } from '../runtime.ts'
import type { ContainerEngine } from './container-engine.ts'
import { inspectExec, runInside } from './inside.ts'
import type { CommandProcesses, TrackedCommand, ProcessTracker } from './process-tracker.ts'

const sweep = loadProgram(new URL('./sweep.sh', import.meta.url))

const Stats = z.looseObject({
  cpu_stats: z.looseObject({ cpu_usage: z.looseObject({ total_usage: z.number().optional() }).optional() }).optional(),
  memory_stats: z.looseObject({ usage: z.number().optional() }).optional(),
  pids_stats: z.looseObject({ current: z.number().optional() }).optional(),
})

/**
 * For an engine whose processes are not visible: assigns processes to commands by their ancestors, inside the
 * container. An orphan belongs to no command and ends with the next command that ends, even if it belonged to a
 * concurrent one. Processes that cannot be ended end with the container. Podman closes a command's output with its
 * first process, so remaining processes must not write to it.
 */
export class TreeTracker implements ProcessTracker {
  readonly #engine: ContainerEngine
  readonly #containerId: string
  readonly #user: string
  readonly #live = new Set<number>()
  /** Processes that commands were permitted to leave behind. */
  readonly #kept = new Set<number>()
  #expected = 0
  #sweeping: Promise<unknown> | undefined

  constructor(engine: ContainerEngine, containerId: string, user: string) {
    this.#engine = engine
    this.#user = user
    this.#containerId = containerId
  }

  async expect(): Promise<Disposable> {
    while (this.#sweeping !== undefined) await this.#sweeping
    this.#expected += 1
    return {
      [Symbol.dispose]: () => {
        this.#expected -= 1
      },
    }
  }

  async open({ execId, insidePid }: TrackedCommand): Promise<CommandProcesses> {
    this.#live.add(insidePid)
    const end = async () => {
      this.#live.delete(insidePid)
      await this.#sweep('kill')
    }
    let closing: Promise<void> | undefined
    return {
      isRunning: async () => (await inspectExec(this.#engine, execId)).Running,
      signal: async (name) => {
        await this.#run(['/bin/sh', '-c', 'kill -s "$1" "$2"', 'sh', name.slice('SIG'.length), String(insidePid)])
      },
      close: () => (closing ??= end()),
      leave: async () => {
        this.#live.delete(insidePid)
        for (const pid of (await this.#sweep('list')).split(' ').filter(Boolean)) this.#kept.add(Number(pid))
      },
    }
  }

  async countOutOfMemory(): Promise<undefined> {}

  async stats(): Promise<SandboxStats> {
    const answer = await this.#engine.call('GET', `/containers/${this.#containerId}/stats`, {
      query: { stream: 'false', 'one-shot': 'true' },
    })
    const { cpu_stats: cpu, memory_stats: memory, pids_stats: pids } = Stats.parse(answer)
    const nanoseconds = cpu?.cpu_usage?.total_usage
    return {
      cpuMs: nanoseconds === undefined ? undefined : nanoseconds / 1e6,
      memoryBytes: memory?.usage,
      processes: pids?.current,
    }
  }

  async #sweep(mode: 'kill' | 'list'): Promise<string> {
    // A command that is being started is not registered yet and would be killed as an orphan.
    while (this.#expected > 0 || this.#sweeping !== undefined) await sleep(5)
    const spared = [...this.#live, ...this.#kept].map(String)
    const sweeping = this.#run(['/bin/sh', '-c', sweep(), 'sh', mode, ...spared])
    this.#sweeping = sweeping
    const { exitCode, stdout } = await sweeping.finally(() => (this.#sweeping = undefined))
    if (exitCode !== 0) {
      const query = { signal: 'SIGKILL' }
      // Rejected if the container has stopped, which is the goal.
      await this.#engine.call('POST', `/containers/${this.#containerId}/kill`, { query }).catch(() => {})
    }
    return stdout.trim()
  }

  /** A program that cannot be started counts as failed. */
  async #run(command: readonly string[]): Promise<{ exitCode: number; stdout: string }> {
    const creation = { command, user: this.#user }
    return runInside(this.#engine, this.#containerId, creation, AbortSignal.timeout(5000)).catch(() => ({
      exitCode: 255,
      stdout: '',
    }))
  }
}
