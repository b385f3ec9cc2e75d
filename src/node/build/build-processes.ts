import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { BuildReply, BuildRequest } from './build-protocol.ts'
import type { BuildFacts, BuildJob, LoadedSession, RecordHead, SessionBuilds } from './session-build.ts'

export interface BuildProcessOptions {
  /** A program that calls `serveBuilds`. */
  program: URL
  /** Its one argument, as JSON. */
  settings: unknown
  clock: Clock
  /** Heap of one process. Token ids are outside of it. */
  heapMb?: number
  /** For one request to a process. */
  timeoutMs?: number
}

/** Several times what the longest ordinary sessions need. */
const HEAP_MB = 2048
const TIMEOUT_MS = 15 * 60_000
/** Processes that are kept when they have no session: starting one takes longer than building most sessions. */
const IDLE_PROCESSES = 4

/**
 * Builds each session in a process of its own, so that a long session does not hold up the event loop. A process that runs
 * out of memory or time ends; its session fails with `session.too-large`, and the node goes on. A thread would not do: when
 * a large allocation fails in a thread, V8 aborts the whole process, whatever limits the thread has.
 */
export class BuildProcesses implements SessionBuilds {
  readonly #options: BuildProcessOptions
  readonly #all = new Set<BuildProcess>()
  readonly #idle: BuildProcess[] = []

  constructor(options: BuildProcessOptions) {
    this.#options = options
  }

  async load(sessionId: string): Promise<LoadedSession> {
    return unlessKilled(async () => {
      const { head, process } = await this.#load(sessionId)
      return new RemoteSession(head, process, {
        again: async () => (await this.#load(sessionId)).process,
        giveBack: (one) => this.#giveBack(one),
      })
    })
  }

  async #load(sessionId: string): Promise<{ head: RecordHead; process: BuildProcess }> {
    const process = this.#idle.shift() ?? this.#start()
    try {
      return { head: await process.ask<RecordHead>({ kind: 'load', sessionId }), process }
    } catch (error) {
      await this.#giveBack(process)
      throw error
    }
  }

  #start(): BuildProcess {
    const process = new BuildProcess(this.#options)
    this.#all.add(process)
    return process
  }

  async #giveBack(process: BuildProcess): Promise<void> {
    const canGoOn = await process.forget()
    if (canGoOn && this.#idle.length < IDLE_PROCESSES) {
      this.#idle.push(process)
      return
    }
    this.#all.delete(process)
    await process.end()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all([...this.#all].map((process) => process.end()))
  }
}

class RemoteSession implements LoadedSession {
  readonly head: RecordHead
  readonly #processes: RemoteProcesses
  #process: BuildProcess
  #isOver = false

  constructor(head: RecordHead, process: BuildProcess, processes: RemoteProcesses) {
    this.head = head
    this.#process = process
    this.#processes = processes
  }

  build(job: BuildJob): Promise<BuildFacts> {
    return unlessKilled(async (isAgain) => {
      if (isAgain) await this.#replaceProcess()
      return this.#process.ask({ kind: 'build', job })
    })
  }

  async #replaceProcess(): Promise<void> {
    await this.#processes.giveBack(this.#process)
    this.#process = await this.#processes.again()
  }

  readConversation(): Promise<string> {
    return this.#process.ask({ kind: 'conversation' })
  }

  readTranscript(): Promise<string> {
    return this.#process.ask({ kind: 'transcript' })
  }

  readLastRequest(): Promise<TurnRequest | undefined> {
    return this.#process.ask({ kind: 'last-request' })
  }

  readRecord(): Promise<SessionRecord> {
    return this.#process.ask({ kind: 'record' })
  }

  writeResult(path: string, parts: { order: SessionOrder; outcome: SessionOutcome }): Promise<void> {
    return this.#process.ask({ kind: 'write', path, parts })
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isOver) return
    this.#isOver = true
    await this.#processes.giveBack(this.#process)
  }
}

interface RemoteProcesses {
  /** Another process that has loaded the same session. */
  again(): Promise<BuildProcess>
  giveBack(process: BuildProcess): Promise<void>
}

/** A process that was killed from outside, which also happens to a small session where a machine has no memory left. */
class ProcessKilled extends RolloutError {}

/** Tries a second time when the process was killed from outside: a session that is not too large is seldom killed twice. */
async function unlessKilled<T>(work: (isAgain: boolean) => Promise<T>): Promise<T> {
  try {
    return await work(false)
  } catch (error) {
    if (!(error instanceof ProcessKilled)) throw error
    return work(true)
  }
}

const LAST_WORDS = 2000

/** One process. Takes one request at a time, and keeps this process alive only while it does. */
class BuildProcess {
  readonly #child: ChildProcess
  readonly #clock: Clock
  readonly #timeoutMs: number
  readonly #exited: Promise<void>
  #waiting: PromiseWithResolvers<BuildReply> | undefined
  #ended: RolloutError | undefined
  #lastWords = ''

  constructor({ program, settings, clock, heapMb = HEAP_MB, timeoutMs = TIMEOUT_MS }: BuildProcessOptions) {
    this.#clock = clock
    this.#timeoutMs = timeoutMs
    const child = fork(fileURLToPath(program), [JSON.stringify(settings)], {
      execArgv: [`--max-old-space-size=${heapMb}`],
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      // Copies typed arrays as they are.
      serialization: 'advanced',
    })
    this.#child = child
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#lastWords = (this.#lastWords + text).slice(-LAST_WORDS)
    })
    child.on('message', (reply) => this.#waiting?.resolve(reply as BuildReply))
    child.on('error', (error) => this.#fail(new RolloutError('internal.bug', `A build process: ${error.message}`)))
    this.#exited = new Promise((resolve) => {
      child.on('exit', (_, signal) => {
        this.#fail(toError(signal, this.#lastWords, heapMb))
        resolve()
      })
    })
    this.#unref()
  }

  async ask<T>(request: BuildRequest): Promise<T> {
    if (this.#ended !== undefined) throw this.#ended
    const waiting = Promise.withResolvers<BuildReply>()
    this.#waiting = waiting
    this.#child.ref()
    this.#child.channel?.ref()
    // One that has just ended says so by its exit.
    this.#child.send(request, () => {})
    const stop = this.#clock.after(this.#timeoutMs, () => {
      const message = `Building the session took longer than ${this.#timeoutMs / 1000} s.`
      this.#fail(new RolloutError('session.too-large', message))
      this.#child.kill('SIGKILL')
    })
    try {
      const { value, failure } = await waiting.promise
      if (failure === undefined) return value as T
      const { code, message, ...fields } = failure
      throw new RolloutError(code, message, fields)
    } finally {
      stop()
      this.#unref()
      this.#waiting = undefined
    }
  }

  /** Whether the process can take another session. */
  async forget(): Promise<boolean> {
    if (this.#ended !== undefined || this.#waiting !== undefined) return false
    try {
      await this.ask({ kind: 'forget' })
      return true
    } catch {
      return false
    }
  }

  async end(): Promise<void> {
    this.#fail(new RolloutError('session.cancelled', 'The node ends.'))
    this.#child.kill('SIGKILL')
    this.#child.ref()
    await this.#exited
  }

  #fail(error: RolloutError): void {
    this.#ended ??= error
    this.#waiting?.reject(this.#ended)
  }

  #unref(): void {
    this.#child.unref()
    this.#child.channel?.unref()
    // A pipe of a child is a socket.
    ;(this.#child.stderr as { unref?: () => void } | null)?.unref?.()
  }
}

/** V8 aborts a process without memory; the kernel kills one when the machine has none. */
function toError(signal: NodeJS.Signals | null, lastWords: string, heapMb: number): RolloutError {
  if (signal === 'SIGABRT' || /heap out of memory/i.test(lastWords)) {
    const message = `Building the session needs more than the ${heapMb} MB of memory that one session may use for it.`
    return new RolloutError('session.too-large', message)
  }
  if (signal === 'SIGKILL') {
    const message = 'The process that builds the session was killed: building needs more memory than the machine has.'
    return new ProcessKilled('session.too-large', message)
  }
  return new RolloutError('internal.bug', `A build process ended by itself: ${lastWords.trim()}`)
}
