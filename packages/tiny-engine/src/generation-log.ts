import { open, type FileHandle } from 'node:fs/promises'
import { EngineSetupError } from './setup-error.ts'

/** What the engine says it did in one generation, so that what others captured of it can be compared. */
export interface GenerationRecord {
  /** As the client knows it; several prompts of one completion request have `-0`, `-1`, … behind it. */
  request_id: string
  endpoint: string
  model: string
  prompt_token_ids: number[]
  choices: {
    index: number
    token_ids: number[]
    /** Of the sampled tokens, whether or not the client asked for them. */
    logprobs: number[]
    /** Sampled text before any parser; cut at a stop string. */
    text: string
    /** Null when a scripted fault cut the answer off. */
    finish_reason: string | null
  }[]
  /** When it began. */
  weight_version: string
  /**
   * Where newer weights took over; absent when none did. Exact when they came in a pause that kept requests and the policy
   * samples only what is read from it; tokens the model has sampled ahead (32 at most) still have the older weights.
   */
  weight_changes?: { choice: number; from_token: number; weight_version: string }[]
  /** ISO 8601. */
  started_at: string
  ended_at: string
  /** Ended by the client leaving, by a pause or by an abort. */
  aborted: boolean
}

export interface GenerationLog extends AsyncDisposable {
  write(record: GenerationRecord): void
}

/** A callback, or a file that gets a JSON line per record and is complete once this is disposed. */
export async function openGenerationLog(target: string | ((record: GenerationRecord) => void)): Promise<GenerationLog> {
  if (typeof target === 'function') return { write: target, async [Symbol.asyncDispose]() {} }
  return new FileLog(await openFile(target))
}

async function openFile(path: string): Promise<FileHandle> {
  try {
    return await open(path, 'a')
  } catch (error) {
    const message = `Cannot write the engine's log ${path}: ${(error as Error).message}`
    throw new EngineSetupError(message, { cause: error })
  }
}

class FileLog implements GenerationLog {
  readonly #file: FileHandle
  #lines: string[] = []
  #writing: Promise<void> | undefined
  #failure: Error | undefined

  constructor(file: FileHandle) {
    this.#file = file
  }

  write(record: GenerationRecord): void {
    this.#lines.push(`${JSON.stringify(record)}\n`)
    this.#writing ??= this.#writeAll()
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#writing
    await this.#file.close()
    if (this.#failure !== undefined) throw this.#failure
  }

  /**
   * One write at a time, with all that came in the meantime, so that lines stay whole and in order. A failure does not
   * stop the engine; whoever closes the log is told.
   */
  async #writeAll(): Promise<void> {
    try {
      while (this.#lines.length > 0) {
        const text = this.#lines.join('')
        this.#lines = []
        await this.#file.appendFile(text)
      }
    } catch (error) {
      this.#failure ??= error instanceof Error ? error : new Error(String(error))
    } finally {
      this.#writing = undefined
    }
  }
}
