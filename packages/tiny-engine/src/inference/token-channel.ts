import type { SampledToken } from '../policies/policy.ts'

/** Tokens on their way from a worker to the one who reads them. */
export class TokenChannel {
  readonly #tokens: SampledToken[] = []
  #outcome: { failed: boolean; error?: unknown } | undefined
  #wake: (() => void) | undefined

  push(token: SampledToken): void {
    this.#tokens.push(token)
    this.#wake?.()
  }

  /** After the tokens that are waiting. */
  end(): void {
    this.#outcome ??= { failed: false }
    this.#wake?.()
  }

  /** At once: what was not read yet is dropped. */
  close(): void {
    this.#tokens.length = 0
    this.end()
  }

  fail(error: unknown): void {
    this.#outcome ??= { failed: true, error }
    this.close()
  }

  /** The next token, as soon as there is one; undefined after the last. One reader at a time. */
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
