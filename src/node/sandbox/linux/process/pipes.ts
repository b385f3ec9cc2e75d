import { closeSync, constants, openSync, unlinkSync } from 'node:fs'
import { readdir, rm } from 'node:fs/promises'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { makeDirectories } from '../../../../lib/fs/make-directories.ts'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import { identify } from './processes.ts'
import type { PipePath } from './spawner.ts'

const { O_RDONLY, O_WRONLY, O_NONBLOCK } = constants
const BATCH = 128

/**
 * One end for this process, one for a child process. The starter of the child opens the child's end; then the name is
 * removed.
 */
export interface Pipe {
  ours: Socket
  /** Non-blocking, so that reading returns when the pipe is empty. */
  oursFd: number
  childEnd: PipePath
  /** Called when the child has opened its end, or failed to start. */
  settle(): void
}

/**
 * Named pipes for child processes. Node connects children by sockets, and a program that opens /dev/stdout or
 * /dev/stderr, as shell scripts do, cannot open a socket. A name is removed when both ends are open. Other users must
 * not be able to enter the folder, because the pipes themselves are writable for all.
 */
export class Pipes implements AsyncDisposable {
  readonly #dir: string
  #ready: string[] = []
  #refill: Promise<void> | undefined
  #count = 0

  constructor(dir: string) {
    this.#dir = join(dir, 'pipes')
  }

  async fromChild(): Promise<Pipe> {
    const path = await this.#acquirePath()
    const oursFd = openSync(path, O_RDONLY | O_NONBLOCK)
    // Without a writer, reading would return the end of the pipe.
    const placeholder = openSync(path, O_WRONLY | O_NONBLOCK)
    const ours = new Socket({ fd: oursFd, readable: true, writable: false })
    return { ours, oursFd, childEnd: { path, isRead: false }, settle: settler(path, placeholder) }
  }

  async toChild(): Promise<Pipe> {
    const path = await this.#acquirePath()
    // The child's end must block, and opening it would wait for our end, which cannot be opened without a reader.
    const placeholder = openSync(path, O_RDONLY | O_NONBLOCK)
    const oursFd = openSync(path, O_WRONLY | O_NONBLOCK)
    const ours = new Socket({ fd: oursFd, readable: false, writable: true })
    return { ours, oursFd, childEnd: { path, isRead: true }, settle: settler(path, placeholder) }
  }

  async #acquirePath(): Promise<string> {
    for (;;) {
      const path = this.#ready.pop()
      if (path !== undefined) return path
      this.#refill ??= this.#create().finally(() => (this.#refill = undefined))
      await this.#refill
    }
  }

  async #create(): Promise<void> {
    if (this.#count === 0) await this.#sweep()
    const paths = Array.from({ length: BATCH }, () => join(this.#dir, `pipe-${process.pid}-${(this.#count += 1)}`))
    const { exitCode, stderr } = await runProgram(['mkfifo', '-m', '666', ...paths], { env: { PATH: '/usr/bin:/bin' } })
    if (exitCode !== 0) throw new RolloutError('runtime.start-failed', `Cannot create pipes in ${this.#dir}: ${stderr}`)
    this.#ready = paths
  }

  /** Removes pipes of dead processes. */
  async #sweep(): Promise<void> {
    await makeDirectories(this.#dir, 0o700)
    for (const name of await readdir(this.#dir)) {
      const owner = Number(name.split('-')[1])
      if ((await identify(owner)) === undefined) await rm(join(this.#dir, name), { force: true })
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#refill?.catch(() => {})
    for (const path of this.#ready.splice(0)) await rm(path, { force: true })
  }
}

function settler(path: string, placeholder: number): () => void {
  let isSettled = false
  return () => {
    if (isSettled) return
    isSettled = true
    closeSync(placeholder)
    unlinkSync(path)
  }
}
