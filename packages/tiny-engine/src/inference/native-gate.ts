const SHUT = 0
const INSIDE = 1

/**
 * A door between a thread and native code, shared with the thread's owner. A thread that is ended while it is inside takes
 * the whole process down with SIGABRT, and `process.exit()` ends all threads wherever they are. So the owner shuts the
 * door first, which waits until the thread is outside and keeps it there.
 */
export class NativeGate {
  readonly buffer: SharedArrayBuffer
  readonly #flags: Int32Array<SharedArrayBuffer>

  /** With the buffer of another, the same door seen from another thread. */
  constructor(buffer = new SharedArrayBuffer(2 * Int32Array.BYTES_PER_ELEMENT)) {
    this.buffer = buffer
    this.#flags = new Int32Array(buffer)
  }

  /** Does the work inside. Behind a shut door it never comes to an end: the thread is about to. */
  async pass<T>(work: () => Promise<T>): Promise<T> {
    // In this order: whoever shuts the door looks whether somebody is inside only after it is shut.
    Atomics.store(this.#flags, INSIDE, 1)
    try {
      if (Atomics.load(this.#flags, SHUT) === 0) return await work()
    } finally {
      Atomics.store(this.#flags, INSIDE, 0)
      Atomics.notify(this.#flags, INSIDE)
    }
    return new Promise(() => undefined)
  }

  /** Blocks the caller, so that it can be used where nothing asynchronous runs any more. */
  shut(timeoutMs: number): void {
    Atomics.store(this.#flags, SHUT, 1)
    Atomics.wait(this.#flags, INSIDE, 1, timeoutMs)
  }
}
