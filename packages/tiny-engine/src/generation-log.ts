import { open, type FileHandle } from 'node:fs/promises'
import { EngineSetupError } from './setup-error.ts'

/** Record of one generation by the engine, for comparison with captured calls. */
export interface GenerationRecord {
  /** Request id of the client; several prompts of one completion request append `-0`, `-1`, …. */
  request_id: string
  endpoint: string
  model: string
  prompt_token_ids: number[]
  choices: {
    index: number
    token_ids: number[]
    /** Log probabilities of the sampled tokens, requested or not. */
    logprobs: number[]
    /** Sampled text before any parser, truncated at a stop string. */
    text: string
    /** Null if a scripted fault truncated the answer. */
    finish_reason: string | null
  }[]
  /** Weight version at the start. */
  weight_version: string
  /**
   * Changes of the weight version; absent if there were none. Exact if the change happened in a pause that kept requests and
   * the policy samples on demand; tokens that the model has sampled ahead (at most 32) still have the older weights.
   */
  weight_changes?: { choice: number; from_token: number; weight_version: string }[]
  /** ISO 8601. */
  started_at: string
  ended_at: string
  /** Whether the client, a pause or an abort ended it. */
  aborted: boolean
}

export interface GenerationLog extends AsyncDisposable {
  write(record: GenerationRecord): void
}

/** A callback, or a file with a JSON line per record that is complete after disposal. */
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
   * Writes all pending lines in one write at a time, so that lines stay complete and ordered. A failure does not stop the
   * engine; closing the log rejects with it.
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
