import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

const main = join(import.meta.dirname, '../../src/cli/main.ts')

/** `polar` of this checkout, as the words of a command. */
export const POLAR = [process.execPath, main] as const

/** The line that `polar server --json` and `polar node --json` print when they are ready. */
interface Ready {
  event: string
  url: string
  node_id?: string
}

/** A `polar` command that runs until it is stopped: a server or a node. */
export class CliProcess implements AsyncDisposable {
  readonly ready: Ready
  readonly #child: ChildProcess

  private constructor(child: ChildProcess, ready: Ready) {
    this.#child = child
    this.ready = ready
  }

  /** Resolves when the command is ready. */
  static async start(words: readonly string[], cwd: string): Promise<CliProcess> {
    const [program, ...args] = [...POLAR, ...words, '--json']
    const child = spawn(program, args, { cwd, stdio: ['ignore', 'pipe', 'pipe'] })
    let log = ''
    child.stderr.setEncoding('utf8').on('data', (text: string) => (log += text))
    for await (const line of createInterface({ input: child.stdout })) {
      const ready = JSON.parse(line) as Ready
      if (ready.event === 'ready') return new CliProcess(child, ready)
    }
    throw new Error(`polar ${words.join(' ')} ended before it was ready:\n${log}`)
  }

  /** Resolves when the process has ended. */
  async end(signal: NodeJS.Signals): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const ended = once(this.#child, 'exit')
    this.#child.kill(signal)
    await ended
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end('SIGTERM')
  }
}
