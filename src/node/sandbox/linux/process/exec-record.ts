import { constants } from 'node:os'
import { join } from 'node:path'
import type { ExecResult, ExecSpec } from '../../runtimes/runtime.ts'
import { Spool } from './spool.ts'

/** Default of `outputBytes`. */
export const OUTPUT_BYTES = 16 * 1024 * 1024

export interface RecordDeps {
  id: string
  /** Folder of the output files. */
  folder: string
  /** Number of processes that the kernel has killed for lack of memory; undefined if unknown. */
  countOutOfMemory(): Promise<number | undefined>
}

/** Output, duration and resource counters of a command, independent of what runs it. */
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

  /** Starts the clock. Calls `onTimeout` at the time limit. */
  begin(onTimeout: () => void): void {
    this.#startedAt = performance.now()
    if (this.#timeoutMs === undefined) return
    this.#timer = setTimeout(() => {
      this.#isTimedOut = true
      onTimeout()
    }, this.#timeoutMs)
  }

  /** Called when the command's first process has ended. */
  stopClock(): void {
    clearTimeout(this.#timer)
    this.#durationMs = performance.now() - this.#startedAt
  }

  /** Called when no more output follows. */
  async end(): Promise<void> {
    await Promise.all([this.spools.stdout.end(), this.spools.stderr.end()])
  }

  async toResult(ending: Pick<ExecResult, 'exitCode' | 'signal'>): Promise<ExecResult> {
    const kills = await this.#deps.countOutOfMemory()
    return {
      ...ending,
      isTimedOut: this.#isTimedOut,
      isOutOfMemory: kills === undefined || this.#killsBefore === undefined ? undefined : kills > this.#killsBefore,
      stdoutBytes: this.spools.stdout.bytes,
      stderrBytes: this.spools.stderr.bytes,
      durationMs: this.#durationMs,
    }
  }
}

/** Reads an exit code in which, with `isSignal`, a number above 128 stands for a signal. */
export function toEnding(code: number, isSignal: boolean): Pick<ExecResult, 'exitCode' | 'signal'> {
  const found = isSignal ? Object.entries(constants.signals).find(([, number]) => code === 128 + number) : undefined
  return found === undefined ? { exitCode: code, signal: null } : { exitCode: null, signal: found[0] as NodeJS.Signals }
}
