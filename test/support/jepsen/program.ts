import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream, type WriteStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

export interface ProgramOptions {
  name: string
  command: readonly string[]
  env: Readonly<NodeJS.ProcessEnv>
  cwd: string
  /** Where all that it says is kept, from every start. */
  logFile: string
  /** It ended, and nobody had asked for that. */
  onCrash: (what: string) => void
}

/** What a command ends with when something it needs is away: it may be started before that is back. */
const UNREACHABLE = 3

/** A node that waits for its server is not ready either. */
const START_TIMEOUT_MS = 180_000
const RESTART_MS = 300

/** A program that is started, killed, halted and started again. */
export class Program implements AsyncDisposable {
  readonly options: ProgramOptions
  readonly #log: WriteStream
  #child: ChildProcess | undefined
  #isWanted = false

  constructor(options: ProgramOptions) {
    this.options = options
    this.#log = createWriteStream(options.logFile, { flags: 'a' })
  }

  get isRunning(): boolean {
    const child = this.#child
    return child !== undefined && child.exitCode === null && child.signalCode === null
  }

  get pid(): number | undefined {
    return this.#child?.pid
  }

  /** Starts it, again and again if need be, until it is ready or killed. */
  async start(): Promise<void> {
    this.#isWanted = true
    while (this.#isWanted) {
      if (await this.#startOnce()) return
      await sleep(RESTART_MS)
    }
  }

  async #startOnce(): Promise<boolean> {
    if (this.isRunning) throw new Error(`${this.options.name} runs already`)
    const { command, env, cwd, name, onCrash } = this.options
    const [program = '', ...given] = command
    this.#log.write(`--- start ${name}\n`)
    const child = spawn(program, given, { cwd, env: { ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
    this.#child = child
    child.stderr.on('data', (chunk: Buffer) => this.#log.write(chunk))
    const { promise, resolve, reject } = Promise.withResolvers<boolean>()
    const timer = setTimeout(() => reject(new Error(`${name} was not ready in time; see its log`)), START_TIMEOUT_MS)
    let isReady = false
    createInterface(child.stdout).on('line', (line) => {
      this.#log.write(`${line}\n`)
      if (!line.includes('"event":"ready"')) return
      isReady = true
      resolve(true)
    })
    child.once('error', reject)
    child.once('exit', (code, signal) => {
      this.#log.write(`--- ended ${name}: ${code ?? signal}\n`)
      if (this.#isWanted && (isReady || code !== UNREACHABLE)) onCrash(`${name} ended with ${code ?? signal}`)
      resolve(false)
    })
    try {
      return await promise
    } finally {
      clearTimeout(timer)
    }
  }

  async kill(): Promise<void> {
    await this.#end('SIGKILL')
  }

  /** It stands still, and does not know it. */
  halt(): void {
    if (this.isRunning) this.#child?.kill('SIGSTOP')
  }

  goOn(): void {
    if (this.isRunning) this.#child?.kill('SIGCONT')
  }

  /** Asks it to end, and waits until it has; what it ended with. */
  async stop(timeoutMs: number): Promise<number | null | undefined> {
    const child = this.#child
    if (child === undefined || !this.isRunning) return child?.exitCode
    const timer = setTimeout(() => child.kill('SIGKILL'), timeoutMs)
    await this.#end('SIGTERM')
    clearTimeout(timer)
    return child.exitCode
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    this.#isWanted = false
    const child = this.#child
    if (child === undefined || !this.isRunning) return
    const ended = once(child, 'exit')
    child.kill(signal)
    await ended
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill()
    await new Promise<void>((resolve) => this.#log.end(() => resolve()))
  }
}
