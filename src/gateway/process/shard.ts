import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { RolloutError } from '../../model/failure.ts'
import { forwardLog } from './forward-log.ts'
import type { GatewayControl } from '../gateway.ts'
import { rejectConnection } from '../http/reject-connection.ts'
import type { TurnReport } from '../handle-turn.ts'
import type { BusyReport, ShardRequest, Reply, ShardInit } from './shard-process.ts'

export interface ShardOptions<T> {
  /** The program of a shard; it calls `serveShard`. */
  program: URL
  settings: T
  /** Heap limit of the process; absent: Node's default. A process that exceeds it exits and is restarted. */
  heapMb?: number
  /** How long requests and connections wait while the process restarts. Default 30 seconds. */
  waitMs?: number
  /** A process whose event loop does not answer for this time is killed and restarted. Default 60 seconds. */
  hangMs?: number
  logger: Logger
}

export interface ShardEvents {
  /** Called after a restart, before any other request: the new process needs the sessions of the old one. */
  onRestart(send: SendRequest): Promise<void>
  onTurn(turn: TurnReport): void
  onBusy(session: BusyReport): void
  /** The process has ended, all its messages have been read, and it will be started again. */
  onCrash(): void
}

export type SendRequest = (method: keyof GatewayControl, args: unknown[]) => Promise<unknown>

interface WaitingConnection {
  sessionId: string
  socket: Socket
  timer: NodeJS.Timeout
}

const WAIT_MS = 30_000
const HANG_MS = 60_000
/** Attempts of one request when the process exits before it answers. */
const MAX_ATTEMPTS = 5
const STOP_MS = 10_000
const FIRST_DELAY_MS = 100
const LONGEST_DELAY_MS = 10_000
/** After this time a process counts as healthy, and the restart delay begins anew. */
const STEADY_MS = 60_000

/** Standard error must contain only log lines. */
const EXEC_ARGV = ['--disable-warning=ExperimentalWarning']

/** A supervised gateway process. It is restarted when it exits, with growing delays when it exits repeatedly. */
export class Shard<T> {
  readonly #index: number
  readonly #options: ShardOptions<T>
  readonly #events: ShardEvents
  readonly #pending = new Map<number, PromiseWithResolvers<unknown>>()
  readonly #connections: WaitingConnection[] = []
  readonly #stopping = new AbortController()
  #child: ChildProcess | undefined
  /** Resolved while the process runs and has opened its sessions. */
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

  /** Throws when the first process does not start: a retry would not help. */
  async start(): Promise<void> {
    await this.#launch()
    this.#setReady()
  }

  /** Waits while the process restarts, and repeats the request when the process exited before it answered. */
  async request(method: keyof GatewayControl, args: unknown[]): Promise<unknown> {
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

  /** Passes a connection to the process. `socket` must be paused: bytes that this process reads would be lost. */
  accept(sessionId: string, socket: Socket): void {
    this.#enqueue(sessionId, socket, 'last')
    void this.#passConnections()
  }

  #enqueue(sessionId: string, socket: Socket, position: 'first' | 'last'): void {
    if (this.#stopping.signal.aborted) return rejectConnection(socket)
    const timer = setTimeout(() => {
      this.#connections.splice(this.#connections.indexOf(entry), 1)
      rejectConnection(socket)
    }, this.#options.waitMs ?? WAIT_MS)
    const entry = { sessionId, socket, timer }
    if (position === 'first') this.#connections.unshift(entry)
    else this.#connections.push(entry)
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    this.#ready.reject(ended('has been stopped'))
    for (const { socket, timer } of this.#connections.splice(0)) {
      clearTimeout(timer)
      rejectConnection(socket)
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

  /** Requests the status of the process until it exits, and kills a process that does not answer. */
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
        logger.error({ shard: this.#index, hangMs }, 'gateway process does not respond; killing it')
        child.kill('SIGKILL')
      }
      silence.abort()
      await sleep(hangMs / 4, undefined, { ref: false, signal }).catch(() => {})
      if (signal.aborted) return
    }
  }

  async #untilReady(timeout: AbortSignal): Promise<void> {
    const tooLong = Promise.withResolvers<never>()
    const onAbort = (): void => tooLong.reject(ended('is restarting'))
    timeout.addEventListener('abort', onAbort, { once: true })
    if (timeout.aborted) onAbort()
    try {
      await Promise.race([this.#ready.promise, tooLong.promise])
    } finally {
      timeout.removeEventListener('abort', onAbort)
    }
  }

  #send(method: ShardRequest['method'], args: unknown[], socket?: Socket): Promise<unknown> {
    const child = this.#child
    if (child?.connected !== true) {
      // An exiting process disconnects before its `exit` event: no request may be sent until then.
      this.#setDown()
      return Promise.reject(ended('has ended'))
    }
    const id = this.#nextId++
    const pending = Promise.withResolvers<unknown>()
    this.#pending.set(id, pending)
    // Without keepOpen, Node never closes a socket that it sent to a process that exits before it receives the socket.
    child.send({ id, method, args } satisfies ShardRequest, socket, { keepOpen: true }, (error) => {
      if (error === null) return
      this.#pending.delete(id)
      pending.reject(ended('has ended'))
    })
    return pending.promise
  }

  #settle({ id, result, failure }: Reply): void {
    const pending = this.#pending.get(id)
    this.#pending.delete(id)
    if (failure === undefined) pending?.resolve(result)
    else pending?.reject(new RolloutError(failure.code, failure.message, { status: failure.status }))
  }

  /** Passes one connection at a time. A connection that an exiting process did not receive is passed to its successor. */
  async #passConnections(): Promise<void> {
    if (this.#isPassing) return
    this.#isPassing = true
    while (this.#isReady) {
      const waiting = this.#connections.shift()
      if (waiting === undefined) break
      const { sessionId, socket, timer } = waiting
      clearTimeout(timer)
      if (socket.destroyed) continue
      // Otherwise Node tracks the socket across processes, with listeners that are never removed.
      Object.assign(socket, { server: null })
      // Afterwards both processes hold the connection, so destroying the socket here does not close it.
      const isAccepted = await this.#send('accept', [sessionId], socket).then(
        () => true,
        () => false,
      )
      if (isAccepted) socket.destroy()
      else this.#enqueue(sessionId, socket, 'first')
    }
    this.#isPassing = false
  }

  #lost(child: ChildProcess, reason: string): void {
    if (child !== this.#child) return
    this.#child = undefined
    for (const pending of this.#pending.values()) pending.reject(ended('has ended'))
    this.#pending.clear()
    this.#setDown()
    // `start` or `#restart` handles a process that was never ready.
    if (child !== this.#readyChild || this.#stopping.signal.aborted) return
    // Its last messages may arrive after its end, but before the end of the channel.
    if (child.connected) child.once('disconnect', () => this.#events.onCrash())
    else this.#events.onCrash()
    const isSteady = performance.now() - this.#readyAt > STEADY_MS
    this.#delayMs = isSteady ? FIRST_DELAY_MS : this.#delayMs
    const { logger } = this.#options
    logger.error({ shard: this.#index, reason, delayMs: this.#delayMs }, 'gateway process exited; restarting it')
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
        this.#options.logger.error({ shard: this.#index, err: error }, 'gateway process could not be restarted')
        const child = this.#child
        this.#child = undefined
        child?.kill('SIGKILL')
      }
    }
  }
}

class ProcessEnded extends RolloutError {}

function ended(what: string): ProcessEnded {
  return new ProcessEnded('session.gateway-lost', `The gateway process ${what}. Try again.`, { retryAfterSeconds: 1 })
}
