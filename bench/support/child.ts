import { fork, type ChildProcess } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'

const START_TIMEOUT_MS = 90_000
const STOP_TIMEOUT_MS = 60_000

interface Reply {
  id: number
  answer?: unknown
  error?: string
}

/** A program of the benchmark in a separate process, so that parties share neither a heap nor an event loop. */
export class Child<Ready> implements AsyncDisposable {
  readonly #process: ChildProcess
  readonly #asked = new Map<number, PromiseWithResolvers<unknown>>()
  #nextId = 0
  readonly ready: Ready

  private constructor(process: ChildProcess, ready: Ready) {
    this.#process = process
    this.ready = ready
    process.on('message', (reply: Reply) => {
      const asked = this.#asked.get(reply.id)
      this.#asked.delete(reply.id)
      if (reply.error === undefined) asked?.resolve(reply.answer)
      else asked?.reject(new Error(reply.error))
    })
    process.on('exit', (code, signal) => {
      for (const asked of this.#asked.values()) asked.reject(new Error(`child ended (${signal ?? code})`))
      this.#asked.clear()
    })
  }

  /** Starts a program of this folder. */
  static async start<Ready>(file: string, args: readonly string[] = []): Promise<Child<Ready>> {
    const child = fork(join(import.meta.dirname, file), args, {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      execArgv: [],
    })
    try {
      const ready = await new Promise<Ready>((resolve, reject) => {
        const timer = setTimeout(() => reject(new Error(`${file} did not start`)), START_TIMEOUT_MS)
        child.once('message', (message: { ready: Ready }) => {
          clearTimeout(timer)
          resolve(message.ready)
        })
        child.once('error', reject)
        child.once('exit', (code, signal) => reject(new Error(`${file} ended (${signal ?? code})`)))
      })
      return new Child(child, ready)
    } catch (error) {
      child.kill('SIGKILL')
      throw error
    }
  }

  get pid(): number {
    return this.#process.pid ?? 0
  }

  ask<Answer>(question: unknown): Promise<Answer> {
    const asked = Promise.withResolvers<unknown>()
    const id = this.#nextId++
    this.#asked.set(id, asked)
    this.#process.send({ id, ask: question })
    return asked.promise as Promise<Answer>
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#process.exitCode !== null || this.#process.signalCode !== null) return
    const ended = new Promise((resolve) => this.#process.once('exit', resolve))
    const timer = setTimeout(() => this.#process.kill('SIGKILL'), STOP_TIMEOUT_MS)
    if (this.#process.connected) this.#process.disconnect()
    await ended
    clearTimeout(timer)
  }
}

/** Starts the tiny engine in a separate process. Without a script, each answer has one token. */
export function startEngineProcess(
  script = 'default: { tokens: 1 }',
  maxModelLen = 32_768,
): Promise<Child<{ url: string }>> {
  return Child.start('engine-process.ts', [script, String(maxModelLen)])
}

/** The child's side. When the parent ends, in any way, the channel closes, and that ends the child. */
export function serveParent(
  ready: unknown,
  { answer, stop }: { answer?: (ask: unknown) => Promise<unknown>; stop?: () => Promise<void> } = {},
): void {
  process.on('message', ({ id, ask }: { id: number; ask: unknown }) => {
    answer?.(ask).then(
      (value) => process.send?.({ id, answer: value }),
      (error: unknown) => process.send?.({ id, error: String(error) }),
    )
  })
  const end = (): void => void (stop?.() ?? Promise.resolve()).finally(() => process.exit(0))
  process.on('disconnect', end)
  process.on('SIGTERM', end)
  // A terminal interrupts the whole group; the child ends with the parent.
  process.on('SIGINT', () => {})
  // The parent may have ended while this child was starting.
  if (process.connected) process.send?.({ ready })
  else end()
}

/** Milliseconds of processor time a process has used with all its threads; undefined where the system has no /proc. */
export async function cpuMsOf(pid: number): Promise<number | undefined> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  // The second field is the name in brackets and may hold spaces; utime and stime are the 14th and 15th.
  const fields = stat?.slice(stat.lastIndexOf(')') + 2).split(' ')
  return fields === undefined ? undefined : (Number(fields[11]) + Number(fields[12])) * MS_PER_TICK
}

/** USER_HZ, which is 100 on every architecture that Node runs on. */
const MS_PER_TICK = 10
