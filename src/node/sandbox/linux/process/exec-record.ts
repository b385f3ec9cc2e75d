import { join } from 'node:path'
import type { ExecResult, ExecSpec } from '../../runtimes/runtime.ts'
import { Spool } from './spool.ts'

const OUTPUT_BYTES = 16 * 1024 * 1024

export interface RecordDeps {
  id: string
  /** For what it writes. */
  folder: string
  /** How often the kernel has killed for want of memory so far; undefined where that cannot be known. */
  countOutOfMemory(): Promise<number | undefined>
  now(): number
}

/** What is kept of a command, whatever runs it: its output, and all that its result says besides how it ended. */
export class ExecRecord {
  readonly spools: Readonly<Record<'stdout' | 'stderr', Spool>>
  readonly #deps: RecordDeps
  readonly #timeoutMs: number | undefined
  readonly #killsBefore: number | undefined
  #startedAt = 0
  #durationMs = 0
  #isTimedOut = false
  #timer: NodeJS.Timeout | undefined

  static async create({ outputBytes = OUTPUT_BYTES, timeoutMs }: ExecSpec, deps: RecordDeps): Promise<ExecRecord> {
    const { folder, id } = deps
    const [stdout, stderr, killsBefore] = await Promise.all([
      Spool.create(join(folder, `${id}.stdout`), outputBytes),
      Spool.create(join(folder, `${id}.stderr`), outputBytes),
      deps.countOutOfMemory(),
    ])
    return new ExecRecord({ stdout, stderr }, deps, { timeoutMs, killsBefore })
  }

  private constructor(
    spools: Record<'stdout' | 'stderr', Spool>,
    deps: RecordDeps,
    { timeoutMs, killsBefore }: { timeoutMs: number | undefined; killsBefore: number | undefined },
  ) {
    this.spools = spools
    this.#deps = deps
    this.#timeoutMs = timeoutMs
    this.#killsBefore = killsBefore
  }

  get isTimedOut(): boolean {
    return this.#isTimedOut
  }

  /** The command begins now; `onTimeout` is called when its time is up. */
  begin(onTimeout: () => void): void {
    this.#startedAt = performance.now()
    if (this.#timeoutMs === undefined) return
    this.#timer = setTimeout(() => {
      this.#isTimedOut = true
      onTimeout()
    }, this.#timeoutMs)
  }

  /** Its first process has ended. */
  stopClock(): void {
    clearTimeout(this.#timer)
    this.#durationMs = performance.now() - this.#startedAt
  }

  /** Nothing more is written. */
  async end(): Promise<void> {
    await Promise.all([this.spools.stdout.end(), this.spools.stderr.end()])
  }

  async toResult(ending: Pick<ExecResult, 'exitCode' | 'signal'>): Promise<ExecResult> {
    const kills = await this.#deps.countOutOfMemory()
    return {
      ...ending,
      isTimedOut: this.#isTimedOut,
      ...(kills !== undefined && this.#killsBefore !== undefined && { isOutOfMemory: kills > this.#killsBefore }),
      stdoutBytes: this.spools.stdout.bytes,
      stderrBytes: this.spools.stderr.bytes,
      durationMs: this.#durationMs,
    }
  }
}
