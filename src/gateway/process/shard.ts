import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { RolloutError } from '../../model/failure.ts'
import { forwardLog } from './forward-log.ts'
import type { GatewayControl } from '../gateway.ts'
import { refuseConnection } from '../http/refuse-connection.ts'
import type { BusyReport, Question, Reply, ShardInit, TurnReport } from './shard-process.ts'

export interface ShardOptions<T> {
  /** The program of a shard; it calls `serveShard`. */
  program: URL
  settings: T
  /** Heap limit of the process; absent: Node's default. A process over it ends, and is started again. */
  heapMb?: number
  /** How long questions and connections wait while the process is started again. Default 30 seconds. */
  waitMs?: number
  /** A process whose event loop answers nothing for so long is killed and started again. Default 60 seconds. */
  hangMs?: number
  logger: Logger
}

/** What the owner of a shard does when something happens to it. */
export interface ShardEvents {
  /** The process has been started again: it needs its sessions back before anything else. */
  onRestart(ask: Ask): Promise<void>
  onTurn(turn: TurnReport): void
  onBusy(session: BusyReport): void
  /** The process has ended, all its messages have been read, and it will be started again. */
  onCrash(): void
}

export type Ask = (method: keyof GatewayControl, args: unknown[]) => Promise<unknown>

interface WaitingConnection {
  sessionId: string
  socket: Socket
  timer: NodeJS.Timeout
}

const WAIT_MS = 30_000
const HANG_MS = 60_000
/** Of one question, when the process ends each time before it answers. */
const MAX_ATTEMPTS = 5
const STOP_MS = 10_000
const FIRST_DELAY_MS = 100
const LONGEST_DELAY_MS = 10_000
/** A process that has run for so long did not end for the reason of the one before. */
const STEADY_MS = 60_000

/** Standard error is for log lines. */
const EXEC_ARGV = ['--disable-warning=ExperimentalWarning']

/** A gateway process under supervision. One that ends is started again, with growing delays when it ends repeatedly. */
export class Shard<T> {
  readonly #index: number
  readonly #options: ShardOptions<T>
  readonly #events: ShardEvents
  readonly #asked = new Map<number, PromiseWithResolvers<unknown>>()
  readonly #connections: WaitingConnection[] = []
  readonly #stopping = new AbortController()
  #child: ChildProcess | undefined
  /** Resolved while the process runs and has its sessions. */
  #ready = Promise.withResolvers<void>()
  #isReady = false
  /** The latest process that became ready. */
  #readyChild: ChildProcess | undefined
  #readyAt = 0
  #delayMs = FIRST_DELAY_MS
  #isPassing = false
  #port = 0
  #nextId = 0

  constructor(index: number, options: ShardOptions<T>, events: ShardEvents) {
    this.#index = index
    this.#options = options
    this.#events = events
    this.#ready.promise.catch(() => {})
  }

  get port(): number {
    return this.#port
  }

  /** Throws when the first process does not come up: another attempt would not help. */
  async start(): Promise<void> {
    await this.#launch()
    this.#setReady()
  }

  /** Waits while the process is started again, and asks again when it ended before it could answer. */
  async ask(method: keyof GatewayControl, args: unknown[]): Promise<unknown> {
    for (let attempts = 1; ; attempts++) {
      await this.#untilReady(AbortSignal.timeout(this.#options.waitMs ?? WAIT_MS))
      try {
        return await this.#send(method, args)
      } catch (error) {
        const isOver = attempts === MAX_ATTEMPTS || this.#stopping.signal.aborted
        if (!(error instanceof ProcessEnded) || isOver) throw error
      }
    }
  }

  /** Passes a connection to the process. `socket` has to be paused: a byte that was read here would be lost. */
  accept(sessionId: string, socket: Socket): void {
    this.#enqueue(sessionId, socket, 'last')
    void this.#passConnections()
  }

  #enqueue(sessionId: string, socket: Socket, place: 'first' | 'last'): void {
    if (this.#stopping.signal.aborted) return refuseConnection(socket)
    const timer = setTimeout(() => {
      this.#connections.splice(this.#connections.indexOf(entry), 1)
      refuseConnection(socket)
    }, this.#options.waitMs ?? WAIT_MS)
    const entry = { sessionId, socket, timer }
    if (place === 'first') this.#connections.unshift(entry)
    else this.#connections.push(entry)
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#ready.reject(ended('has been stopped'))
    for (const { socket, timer } of this.#connections.splice(0)) {
      clearTimeout(timer)
      refuseConnection(socket)
    }
    const child = this.#child
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    const exited = once(child, 'exit')
    if (child.connected) child.disconnect()
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
    await exited
    clearTimeout(timer)
  }

  async #launch(): Promise<void> {
    const { program, settings, heapMb } = this.#options
    const child = fork(program, {
      execArgv: [...EXEC_ARGV, ...(heapMb === undefined ? [] : [`--max-old-space-size=${heapMb}`])],
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    })
    this.#child = child
    forwardLog(child.stderr!, this.#options.logger)
    child.on('message', (message: Reply | TurnReport | BusyReport) => {
      if ('isBusy' in message) this.#events.onBusy(message)
      else if ('sessionId' in message) this.#events.onTurn(message)
      else this.#settle(message)
    })
    child.once('error', (error) => this.#lost(child, error.message))
    child.once('exit', (code, signal) => this.#lost(child, signal ?? `exit code ${code}`))
    const init: ShardInit<T> = { port: this.#port, settings }
    this.#port = (await this.#send('init', [init])) as number
  }

  #setDown(): void {
    if (!this.#isReady) return
    this.#isReady = false
    this.#ready = Promise.withResolvers()
    this.#ready.promise.catch(() => {})
  }

  #setReady(): void {
    const child = this.#child
    if (child === undefined) throw ended('has ended')
    this.#isReady = true
    this.#readyChild = child
    void this.#watch(child)
    this.#readyAt = performance.now()
    this.#ready.resolve()
    void this.#passConnections()
  }

  /** Asks the process for its status until it has ended. One that does not answer is killed; its end is handled as any. */
  async #watch(child: ChildProcess): Promise<void> {
    const { hangMs = HANG_MS, logger } = this.#options
    const { signal } = this.#stopping
    while (child === this.#child) {
      const answered = this.#send('status', []).then(
        () => true,
        () => true,
      )
      const silence = new AbortController()
      const late = sleep(hangMs, false, { ref: false, signal: silence.signal }).catch(() => true)
      if (!(await Promise.race([answered, late])) && !signal.aborted) {
        logger.error({ shard: this.#index, hangMs }, 'gateway process does not answer; ending it')
        child.kill('SIGKILL')
      }
      silence.abort()
      await sleep(hangMs / 4, undefined, { ref: false, signal }).catch(() => {})
      if (signal.aborted) return
    }
  }

  async #untilReady(timeout: AbortSignal): Promise<void> {
    const tooLong = Promise.withResolvers<never>()
    const onAbort = (): void => tooLong.reject(ended('is being started again'))
    timeout.addEventListener('abort', onAbort, { once: true })
    if (timeout.aborted) onAbort()
    try {
      await Promise.race([this.#ready.promise, tooLong.promise])
    } finally {
      timeout.removeEventListener('abort', onAbort)
    }
  }

  #send(method: Question['method'], args: unknown[], socket?: Socket): Promise<unknown> {
    const child = this.#child
    if (child?.connected !== true) {
      // A process that ends disconnects before its end is reported: nothing may be asked again until then.
      this.#setDown()
      return Promise.reject(ended('has ended'))
    }
    const id = this.#nextId++
    const asked = Promise.withResolvers<unknown>()
    this.#asked.set(id, asked)
    // Node would never close a socket that it has sent to a process that ends before it takes the socket.
    child.send({ id, method, args } satisfies Question, socket, { keepOpen: true }, (error) => {
      if (error === null) return
      this.#asked.delete(id)
      asked.reject(ended('has ended'))
    })
    return asked.promise
  }

  #settle({ id, result, failure }: Reply): void {
    const asked = this.#asked.get(id)
    this.#asked.delete(id)
    if (failure === undefined) asked?.resolve(result)
    else asked?.reject(new RolloutError(failure.code, failure.message, { status: failure.status }))
  }

  /** One at a time: a connection that is not with a process that ends is passed to the next one. */
  async #passConnections(): Promise<void> {
    if (this.#isPassing) return
    this.#isPassing = true
    while (this.#isReady) {
      const waiting = this.#connections.shift()
      if (waiting === undefined) break
      const { sessionId, socket, timer } = waiting
      clearTimeout(timer)
      if (socket.destroyed) continue
      // Node would track the sockets of this server across processes, by listeners that stay as long as the process.
      Object.assign(socket, { server: null })
      // Both processes have the connection then, so it stays open.
      const isTaken = await this.#send('accept', [sessionId], socket).then(
        () => true,
        () => false,
      )
      if (isTaken) socket.destroy()
      else this.#enqueue(sessionId, socket, 'first')
    }
    this.#isPassing = false
  }

  #lost(child: ChildProcess, reason: string): void {
    if (child !== this.#child) return
    this.#child = undefined
    for (const asked of this.#asked.values()) asked.reject(ended('has ended'))
    this.#asked.clear()
    this.#setDown()
    // One that was never ready is the first or one that failed to restart: whoever launched it goes on from here.
    if (child !== this.#readyChild || this.#stopping.signal.aborted) return
    // Its last messages may arrive after its end, but before the end of the channel.
    if (child.connected) child.once('disconnect', () => this.#events.onCrash())
    else this.#events.onCrash()
    const isSteady = performance.now() - this.#readyAt > STEADY_MS
    this.#delayMs = isSteady ? FIRST_DELAY_MS : this.#delayMs
    const { logger } = this.#options
    logger.error({ shard: this.#index, reason, delayMs: this.#delayMs }, 'gateway process ended; starting it again')
    void this.#restart()
  }

  async #restart(): Promise<void> {
    const { signal } = this.#stopping
    while (!signal.aborted) {
      await sleep(this.#delayMs, undefined, { signal }).catch(() => {})
      this.#delayMs = Math.min(2 * this.#delayMs, LONGEST_DELAY_MS)
      if (signal.aborted) return
      try {
        await this.#launch()
        await this.#events.onRestart((method, args) => this.#send(method, args))
        this.#setReady()
        return
      } catch (error) {
        this.#options.logger.error({ shard: this.#index, err: error }, 'gateway process could not be started again')
        const child = this.#child
        this.#child = undefined
        child?.kill('SIGKILL')
      }
    }
  }
}

/** The process ended before it could answer. */
class ProcessEnded extends RolloutError {}

function ended(what: string): ProcessEnded {
  return new ProcessEnded('session.gateway-lost', `The gateway process ${what}. Try again.`, { retryAfterSeconds: 1 })
}
