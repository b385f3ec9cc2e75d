import type { ChildProcess } from 'node:child_process'
import { EventEmitter } from 'node:events'
import { PassThrough, type Readable } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { createCleanSpawn } from './clean-spawn.ts'
import { startChildren } from './start-children.ts'

/** The members of `ChildProcess` that are used. */
export interface SpawnedProcess extends EventEmitter {
  /** Undefined until the process runs, and if it could not be started. */
  readonly pid?: number | undefined
  readonly exitCode: number | null
  readonly signalCode: NodeJS.Signals | null
  readonly stdout: Readable | null
  readonly stderr: Readable | null
  kill(signal?: NodeJS.Signals): boolean
}

/** A named pipe that the starter opens for the child. */
export interface PipePath {
  path: string
  /** Whether the child reads from the pipe. */
  isRead: boolean
}

/** `pipe`: for the lines that a process prints when it is ready. */
export type RemoteStdio = 'ignore' | 'pipe' | PipePath

export type ToSpawner =
  | {
      type: 'spawn'
      id: number
      file: string
      args: readonly string[]
      env: Readonly<Record<string, string>>
      stdio: readonly RemoteStdio[]
    }
  | { type: 'kill'; id: number; signal: NodeJS.Signals }

export type FromSpawner =
  | { type: 'ready' }
  | { type: 'spawned'; id: number; pid: number }
  | { type: 'output'; id: number; stream: 'stdout' | 'stderr'; text: string }
  | { type: 'exited'; id: number; code: number | null; signal: NodeJS.Signals | null }
  | { type: 'failed'; id: number; message: string }

export type RemoteSpawn = (
  file: string,
  args: readonly string[],
  options: { env: Readonly<Record<string, string>>; stdio: readonly RemoteStdio[] },
) => SpawnedProcess

/**
 * Starts processes in sessions of their own, with only the given environment and file descriptors, without blocking
 * this process: fork copies the page tables, which blocks for milliseconds per hundred megabytes. A small helper
 * process forks instead, if it can be started. The helper ends with this process, and so do its children that were
 * started with `setpriv --pdeathsig`.
 */
export class Spawner implements AsyncDisposable {
  #helper: ChildProcess | undefined
  /** Handles requests: the helper when it is ready, otherwise this process. */
  #send: ((message: ToSpawner) => void) | undefined
  #waiting: ToSpawner[] = []
  #count = 0
  readonly #children = new Map<number, RemoteChild>()

  readonly spawn: RemoteSpawn = (file, args, { env, stdio }) => {
    const id = (this.#count += 1)
    const child = new RemoteChild((signal) => this.#request({ type: 'kill', id, signal }))
    this.#children.set(id, child)
    this.#updateRefs()
    this.#request({ type: 'spawn', id, file, args: [...args], env, stdio: [...stdio] })
    return child
  }

  #request(message: ToSpawner): void {
    if (this.#send !== undefined) return this.#send(message)
    this.#waiting.push(message)
    this.#helper ??= this.#start()
  }

  #start(): ChildProcess {
    const file = fileURLToPath(
      new URL(import.meta.url.endsWith('.ts') ? './spawner-process.ts' : './spawner-process.js', import.meta.url),
    )
    const flags = ['--max-old-space-size=64', '--max-semi-space-size=1', '--no-warnings']
    const helper = createCleanSpawn()(process.execPath, [...flags, file], {
      stdio: ['ignore', 'ignore', 'ignore', 'ipc'],
      env: {},
      cwd: '/',
      detached: true,
    })
    helper.on('message', (message: FromSpawner) => {
      if (message.type === 'ready') this.#begin((order) => void helper.send(order, () => {}))
      else this.#receive(message)
    })
    helper.once('error', () => this.#handleExit(helper))
    helper.once('exit', () => this.#handleExit(helper))
    return helper
  }

  /** Children keep this process alive, as usual; the helper itself does not. */
  #updateRefs(): void {
    const isNeeded = this.#children.size > 0
    const { channel } = this.#helper ?? {}
    this.#helper?.[isNeeded ? 'ref' : 'unref']()
    channel?.[isNeeded ? 'ref' : 'unref']()
  }

  #begin(send: (message: ToSpawner) => void): void {
    this.#send = send
    for (const message of this.#waiting.splice(0)) send(message)
  }

  #receive(message: Exclude<FromSpawner, { type: 'ready' }>): void {
    const child = this.#children.get(message.id)
    if (message.type === 'exited' || message.type === 'failed') {
      this.#children.delete(message.id)
      this.#updateRefs()
    }
    child?.receive(message)
  }

  /**
   * If the helper could not be started, for example because the user cannot read our program files, this process starts
   * children itself.
   */
  #handleExit(helper: ChildProcess): void {
    if (this.#helper !== helper) return
    if (this.#send === undefined) {
      const start = startChildren((message) => {
        if (message.type !== 'ready') this.#receive(message)
      })
      this.#begin(start)
      return
    }
    this.#helper = undefined
    this.#send = undefined
    this.#failChildren()
  }

  /** Reports all children as failed: they ended with the helper or can no longer be observed. */
  #failChildren(): void {
    for (const [id, child] of this.#children) child.receive({ type: 'failed', id, message: 'its parent process ended' })
    this.#children.clear()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const helper = this.#helper
    this.#helper = undefined
    this.#send = undefined
    if (helper?.connected) {
      const ended = new Promise((resolve) => helper.once('exit', resolve))
      helper.ref()
      helper.disconnect()
      await ended
    }
    this.#failChildren()
  }
}

/** A process that the helper started. */
class RemoteChild extends EventEmitter implements SpawnedProcess {
  pid: number | undefined
  exitCode: number | null = null
  signalCode: NodeJS.Signals | null = null
  readonly stdout = new PassThrough()
  readonly stderr = new PassThrough()
  readonly #send: (signal: NodeJS.Signals) => void
  #isOver = false

  constructor(send: (signal: NodeJS.Signals) => void) {
    super()
    this.#send = send
  }

  kill(signal: NodeJS.Signals = 'SIGTERM'): boolean {
    if (this.#isOver) return false
    this.#send(signal)
    return true
  }

  receive(message: Exclude<FromSpawner, { type: 'ready' }>): void {
    switch (message.type) {
      case 'spawned':
        this.pid = message.pid
        this.emit('spawn')
        break
      case 'output':
        this[message.stream].write(message.text)
        break
      case 'exited':
        this.exitCode = message.code
        this.signalCode = message.signal
        this.#end()
        break
      case 'failed':
        this.exitCode = 127
        // Without a listener, the exit event reports the failure.
        if (this.listenerCount('error') > 0) this.emit('error', new Error(message.message))
        this.#end()
        break
    }
  }

  #end(): void {
    this.#isOver = true
    this.stdout.end()
    this.stderr.end()
    this.emit('exit', this.exitCode, this.signalCode)
    setImmediate(() => this.emit('close', this.exitCode, this.signalCode))
  }
}
