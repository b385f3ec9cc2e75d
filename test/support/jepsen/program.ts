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
  /** Log file of all starts. */
  logFile: string
  /** Called when the program exits unexpectedly. */
  onCrash: (what: string) => void
}

/** Exit code if a dependency is unreachable, because a program may start before its dependencies. */
const UNREACHABLE = 3

/** Includes the time that a node waits for its server. */
const START_TIMEOUT_MS = 180_000
const RESTART_MS = 300

/** A program that can be started, killed, stopped by SIGSTOP and restarted. */
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

  /** Starts the program repeatedly until it is ready or killed. */
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

  /** Suspends the process by SIGSTOP, which it cannot notice. */
  halt(): void {
    if (this.isRunning) this.#child?.kill('SIGSTOP')
  }

  goOn(): void {
    if (this.isRunning) this.#child?.kill('SIGCONT')
  }

  /** Stops the program gracefully and returns its exit code. */
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
