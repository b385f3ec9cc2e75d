import type { SampledToken } from '../policies/policy.ts'

/** Queue of tokens from a worker to a reader. */
export class TokenChannel {
  readonly #tokens: SampledToken[] = []
  #outcome: { failed: boolean; error?: unknown } | undefined
  #wake: (() => void) | undefined

  push(token: SampledToken): void {
    this.#tokens.push(token)
    this.#wake?.()
  }

  /** Ends the channel after the queued tokens. */
  end(): void {
    this.#outcome ??= { failed: false }
    this.#wake?.()
  }

  /** Ends the channel immediately and drops queued tokens. */
  close(): void {
    this.#tokens.length = 0
    this.end()
  }

  fail(error: unknown): void {
    this.#outcome ??= { failed: true, error }
    this.close()
  }

  /** Returns the next token when it arrives; undefined after the last. Supports one reader at a time. */
  async take(): Promise<SampledToken | undefined> {
    while (this.#tokens.length === 0 && this.#outcome === undefined) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
    const token = this.#tokens.shift()
    if (token === undefined && this.#outcome?.failed === true) throw this.#outcome.error
    return token
  }
}
