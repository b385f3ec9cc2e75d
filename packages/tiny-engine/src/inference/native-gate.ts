const SHUT = 0
const INSIDE = 1

/**
 * A gate between a thread and native code, shared with the thread's owner. Terminating a thread in native code ends the whole
 * process with SIGABRT, and `process.exit()` terminates all threads. Therefore the owner closes the gate first, which waits
 * until the thread has left native code and keeps it out.
 */
export class NativeGate {
  readonly buffer: SharedArrayBuffer
  readonly #flags: Int32Array<SharedArrayBuffer>

  /** Created with the buffer of another gate, it is the same gate in another thread. */
  constructor(buffer = new SharedArrayBuffer(2 * Int32Array.BYTES_PER_ELEMENT)) {
    this.buffer = buffer
    this.#flags = new Int32Array(buffer)
  }

  /** Runs native work. Behind a closed gate it never returns, because the thread is about to end. */
  async pass<T>(work: () => Promise<T>): Promise<T> {
    // Order matters: the owner checks for running work only after it has closed the gate.
    Atomics.store(this.#flags, INSIDE, 1)
    try {
      if (Atomics.load(this.#flags, SHUT) === 0) return await work()
    } finally {
      Atomics.store(this.#flags, INSIDE, 0)
      Atomics.notify(this.#flags, INSIDE)
    }
    return new Promise(() => undefined)
  }

  /** Blocks the caller, so that it also works where no asynchronous code runs any more. */
  shut(timeoutMs: number): void {
    Atomics.store(this.#flags, SHUT, 1)
    Atomics.wait(this.#flags, INSIDE, 1, timeoutMs)
  }
}
