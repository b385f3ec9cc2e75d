import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import type { Clock } from '../../lib/async/clock.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { BuildReply, BuildRequest, SessionMethod } from './build-protocol.ts'
import type { BuildFacts, BuildJob, LoadedSession, RecordHead, SessionBuilds } from './session-build.ts'

export interface BuildProcessOptions {
  /** The program of a build process, which calls `serveBuilds`. */
  program: URL
  /** Passed to the program as its argument, in JSON. */
  settings: unknown
  clock: Clock
  /** Heap limit of one process. Token ids are stored outside of the heap. */
  heapMb?: number
  /** Time limit of one request to a process. */
  timeoutMs?: number
}

/** Several times the heap that long sessions need. */
const HEAP_MB = 2048
const TIMEOUT_MS = 15 * 60_000
/** Number of idle processes that are kept: starting a process takes longer than building most sessions. */
const IDLE_PROCESSES = 4

/**
 * Builds each session in a child process, so that a long session does not block the event loop. A process that exceeds its
 * memory or time limit ends, and its session fails with `session.too-large`. Worker threads are not sufficient: if a large
 * allocation fails in a thread, V8 aborts the whole process, whatever the limits of the thread.
 */
export class BuildProcesses implements SessionBuilds {
  readonly #options: BuildProcessOptions
  readonly #all = new Set<BuildProcess>()
  readonly #idle: BuildProcess[] = []

  constructor(options: BuildProcessOptions) {
    this.#options = options
  }

  async load(sessionId: string): Promise<LoadedSession> {
    return retryIfKilled(async () => {
      const { head, process } = await this.#load(sessionId)
      return new RemoteSession(head, process, {
        reload: async () => (await this.#load(sessionId)).process,
        release: (ended) => this.#release(ended),
      })
    })
  }

  async #load(sessionId: string): Promise<{ head: RecordHead; process: BuildProcess }> {
    const process = this.#idle.shift() ?? this.#start()
    try {
      return { head: await process.request<RecordHead>({ kind: 'load', sessionId }), process }
    } catch (error) {
      await this.#release(process)
      throw error
    }
  }

  #start(): BuildProcess {
    const process = new BuildProcess(this.#options)
    this.#all.add(process)
    return process
  }

  async #release(process: BuildProcess): Promise<void> {
    const isReusable = await process.releaseSession()
    if (isReusable && this.#idle.length < IDLE_PROCESSES) {
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
  #isReleased = false

  constructor(head: RecordHead, process: BuildProcess, processes: RemoteProcesses) {
    this.head = head
    this.#process = process
    this.#processes = processes
  }

  build(job: BuildJob): Promise<BuildFacts> {
    return retryIfKilled(async (isRetry) => {
      if (isRetry) await this.#replaceProcess()
      return this.#call('build', job)
    })
  }

  #call<M extends SessionMethod>(method: M, ...args: Parameters<LoadedSession[M]>): ReturnType<LoadedSession[M]> {
    return this.#process.request({ kind: 'call', method, args }) as ReturnType<LoadedSession[M]>
  }

  async #replaceProcess(): Promise<void> {
    await this.#processes.release(this.#process)
    this.#process = await this.#processes.reload()
  }

  readConversation(): Promise<string> {
    return this.#call('readConversation')
  }

  readTranscript(): Promise<string> {
    return this.#call('readTranscript')
  }

  readLastRequest(): Promise<TurnRequest | undefined> {
    return this.#call('readLastRequest')
  }

  readRecord(): Promise<SessionRecord> {
    return this.#call('readRecord')
  }

  writeResult(path: string, parts: { order: SessionOrder; outcome: SessionOutcome }): Promise<void> {
    return this.#call('writeResult', path, parts)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isReleased) return
    this.#isReleased = true
    await this.#processes.release(this.#process)
  }
}

interface RemoteProcesses {
  /** Returns another process that has loaded the same session. */
  reload(): Promise<BuildProcess>
  release(process: BuildProcess): Promise<void>
}

/** The process was killed from outside. This also happens to small sessions if the machine has no memory left. */
class ProcessKilled extends RolloutError {}

/** Retries once if the process was killed from outside: a session that is not too large is seldom killed twice. */
async function retryIfKilled<T>(work: (isRetry: boolean) => Promise<T>): Promise<T> {
  try {
    return await work(false)
  } catch (error) {
    if (!(error instanceof ProcessKilled)) throw error
    return work(true)
  }
}

const STDERR_CHARACTERS = 2000

/** A child process that handles one request at a time. It keeps this process alive only during a request. */
class BuildProcess {
  readonly #child: ChildProcess
  readonly #clock: Clock
  readonly #timeoutMs: number
  readonly #exited: Promise<void>
  #waiting: PromiseWithResolvers<BuildReply> | undefined
  #ended: RolloutError | undefined
  #stderr = ''

  constructor({ program, settings, clock, heapMb = HEAP_MB, timeoutMs = TIMEOUT_MS }: BuildProcessOptions) {
    this.#clock = clock
    this.#timeoutMs = timeoutMs
    const child = fork(fileURLToPath(program), [JSON.stringify(settings)], {
      execArgv: [`--max-old-space-size=${heapMb}`],
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      // Needed for typed arrays.
      serialization: 'advanced',
    })
    this.#child = child
    child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#stderr = (this.#stderr + text).slice(-STDERR_CHARACTERS)
    })
    child.on('message', (reply) => this.#waiting?.resolve(reply as BuildReply))
    child.on('error', (error) =>
      this.#fail(new RolloutError('internal.bug', `A build process failed: ${error.message}`)),
    )
    this.#exited = new Promise((resolve) => {
      child.on('exit', (_, signal) => {
        this.#fail(toError(signal, this.#stderr, heapMb))
        resolve()
      })
    })
    this.#unref()
  }

  async request<T>(input: BuildRequest): Promise<T> {
    if (this.#ended !== undefined) throw this.#ended
    const waiting = Promise.withResolvers<BuildReply>()
    this.#waiting = waiting
    this.#child.ref()
    this.#child.channel?.ref()
    // If the process has just ended, its exit event rejects the request.
    this.#child.send(input, () => {})
    const stop = this.#clock.after(this.#timeoutMs, () => {
      const why = `Building the session took longer than ${this.#timeoutMs / 1000} s.`
      this.#fail(new RolloutError('session.too-large', why))
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

  /** Returns whether the process can load another session. */
  async releaseSession(): Promise<boolean> {
    if (this.#ended !== undefined || this.#waiting !== undefined) return false
    try {
      await this.request({ kind: 'release' })
      return true
    } catch {
      return false
    }
  }

  async end(): Promise<void> {
    this.#fail(new RolloutError('session.cancelled', 'The node is stopping.'))
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
    // The stderr pipe of a child is a socket, which has unref().
    ;(this.#child.stderr as { unref?: () => void } | null)?.unref?.()
  }
}

/** V8 aborts a process at its heap limit; the kernel kills a process if the machine has no memory left. */
function toError(signal: NodeJS.Signals | null, stderr: string, heapMb: number): RolloutError {
  if (signal === 'SIGABRT' || /heap out of memory/i.test(stderr)) {
    const message = `Building the session needs more than the limit of ${heapMb} MB of memory.`
    return new RolloutError('session.too-large', message)
  }
  if (signal === 'SIGKILL') {
    const message = 'The process that builds the session was killed: building needs more memory than the machine has.'
    return new ProcessKilled('session.too-large', message)
  }
  return new RolloutError('internal.bug', `A build process ended unexpectedly: ${stderr.trim()}`)
}
