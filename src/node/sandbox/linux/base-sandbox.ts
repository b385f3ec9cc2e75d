import { mkdir } from 'node:fs/promises'
import { isAbsolute, join, normalize } from 'node:path/posix'
import { RolloutError } from '../../../model/failure.ts'
import type { CopyLimits, Execution, ExecSpec, Sandbox, SandboxStats } from '../runtimes/runtime.ts'
import type { CompleteExecSpec } from './process/render-exec.ts'
import type { Records, SandboxRecord } from './records.ts'

export interface SandboxParts {
  /** Stored on disk; `renew` updates it. */
  record: SandboxRecord
  records: Records
  folder: string
  workdir: string
  /** Environment of all commands. */
  env: Readonly<Record<string, string>>
  socketPort: number | undefined
  now(): number
}

/** File operations of `Sandbox`, with absolute paths inside. */
export interface SandboxFiles {
  upload(source: string, target: string, signal: AbortSignal): Promise<void>
  download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void>
  /** `modifiedAt` is in Unix seconds. */
  writeFile(path: string, data: string | Uint8Array, mode: number, modifiedAt: number): Promise<void>
  readFile(path: string, maxBytes: number): Promise<Buffer>
}

/**
 * State that all kinds of sandboxes share: a stopped sandbox accepts no operation, a frozen one runs no commands, and
 * relative paths start at the workdir.
 */
export abstract class BaseSandbox<Parts extends SandboxParts> implements Sandbox {
  protected readonly parts: Parts
  protected abstract readonly files: SandboxFiles
  #execs = 0
  #freezing: Promise<void> | undefined
  #stopping: Promise<void> | undefined

  constructor(parts: Parts) {
    this.parts = parts
  }

  get id(): string {
    return this.parts.record.id
  }

  get workdir(): string {
    return this.parts.workdir
  }

  get socketPort(): number | undefined {
    return this.parts.socketPort
  }

  async exec(spec: ExecSpec): Promise<Execution> {
    this.assertRunning()
    const folder = join(this.parts.folder, 'exec')
    await mkdir(folder, { recursive: true, mode: 0o700 })
    const complete = { ...spec, cwd: this.#path(spec.cwd ?? '.'), env: { ...this.parts.env, ...spec.env } }
    try {
      return await this.startCommand(complete, { id: `x${(this.#execs += 1)}`, folder })
    } catch (error) {
      this.assertAlive()
      return this.throwGone(error)
    }
  }

  async upload(source: string, target: string, signal: AbortSignal): Promise<void> {
    this.assertAlive()
    await this.files.upload(source, this.#path(target), signal)
  }

  async download(source: string, target: string, limits: CopyLimits, signal: AbortSignal): Promise<void> {
    this.assertAlive()
    await this.files.download(this.#path(source), target, limits, signal)
  }

  async writeFile(path: string, data: string | Uint8Array, options: { mode?: number } = {}): Promise<void> {
    this.assertAlive()
    await this.files.writeFile(this.#path(path), data, options.mode ?? 0o644, this.parts.now() / 1000)
  }

  async readFile(path: string, options: { maxBytes: number }): Promise<Buffer> {
    this.assertAlive()
    return this.files.readFile(this.#path(path), options.maxBytes)
  }

  async stats(): Promise<SandboxStats> {
    this.assertAlive()
    return this.measure().catch((error: unknown) => this.throwGone(error))
  }

  async renew(leaseUntil: number): Promise<void> {
    this.assertAlive()
    const { record, records } = this.parts
    record.leaseUntil = leaseUntil
    await this.publish?.(record).catch((error: unknown) => this.throwGone(error))
    await records.write(record)
  }

  async snapshot(name: string): Promise<void> {
    this.assertAlive()
    await this.storeSnapshot(name).catch((error: unknown) => this.throwGone(error))
  }

  async freeze(): Promise<void> {
    this.assertAlive()
    await (this.#freezing ??= this.endProcesses())
  }

  stop(): Promise<void> {
    this.#stopping ??= this.close()
    return this.#stopping
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop()
  }

  protected get isFrozen(): boolean {
    return this.#freezing !== undefined
  }

  protected get isStopping(): boolean {
    return this.#stopping !== undefined
  }

  /** `folder` is that of the output files. */
  protected abstract startCommand(spec: CompleteExecSpec, at: { id: string; folder: string }): Promise<Execution>
  protected abstract measure(): Promise<SandboxStats>
  protected abstract storeSnapshot(name: string): Promise<void>
  /** Ends all processes and closes the sockets; the files stay. Called once. */
  protected abstract endProcesses(): Promise<void>
  /** Ends all processes and removes the sandbox. Called once. */
  protected abstract close(): Promise<void>
  /** Stores a renewed record where other nodes find it. */
  protected publish?(record: SandboxRecord): Promise<void>
  /** Whether an error means that the sandbox's engine does not respond or does not know the sandbox. */
  protected isEngineError?(error: unknown): boolean

  protected assertAlive(): void {
    if (this.isStopping) throw new RolloutError('runtime.gone', `Sandbox ${this.id} was stopped`)
  }

  protected assertRunning(): void {
    this.assertAlive()
    if (this.isFrozen) throw new RolloutError('runtime.gone', `Sandbox ${this.id} is frozen and runs no commands`)
  }

  protected throwGone(error: unknown): never {
    if (this.isEngineError?.(error) !== true) throw error
    const reason = (error as Error).message
    throw new RolloutError('runtime.gone', `Sandbox ${this.id} no longer responds: ${reason}`, { cause: error })
  }

  #path(path: string): string {
    return isAbsolute(path) ? normalize(path) : join(this.parts.workdir, path)
  }
}
