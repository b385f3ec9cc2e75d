import { writeFile } from 'node:fs/promises'
import { Session } from 'node:inspector/promises'

/** Profiles this process on request of its parent. */
export class SelfProfiler {
  readonly #inspector = new Session()

  constructor() {
    this.#inspector.connect()
  }

  async start(): Promise<void> {
    await this.#inspector.post('Profiler.enable')
    await this.#inspector.post('Profiler.setSamplingInterval', { interval: 200 })
    await this.#inspector.post('Profiler.start')
  }

  async stop(file: string): Promise<void> {
    const { profile } = await this.#inspector.post('Profiler.stop')
    await writeFile(file, JSON.stringify(profile))
  }
}
