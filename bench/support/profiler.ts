import { writeFile } from 'node:fs/promises'
import { Session } from 'node:inspector/promises'

export type ProfileAsk = { kind: 'profile-start' } | { kind: 'profile-stop'; file: string }

/** Profiles this process on request of its parent. */
export class SelfProfiler {
  readonly #inspector = new Session()

  constructor() {
    this.#inspector.connect()
  }

  async answer(ask: ProfileAsk): Promise<void> {
    if (ask.kind === 'profile-start') {
      await this.#inspector.post('Profiler.enable')
      await this.#inspector.post('Profiler.setSamplingInterval', { interval: 200 })
      await this.#inspector.post('Profiler.start')
    } else {
      const { profile } = await this.#inspector.post('Profiler.stop')
      await writeFile(ask.file, JSON.stringify(profile))
    }
  }
}
