/** Resolves when it is aborted. */
export function untilAborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

/** Calls `stop` when the signal is aborted, at once if it is already aborted. Dispose of the result to unsubscribe. */
export function onAbort(signal: AbortSignal | undefined, stop: () => void): Disposable {
  signal?.addEventListener('abort', stop, { once: true })
  if (signal?.aborted) stop()
  return { [Symbol.dispose]: () => signal?.removeEventListener('abort', stop) }
}

/** Settles as `work` does, or rejects when the signal is aborted; `work` itself continues. */
export async function orAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  signal.throwIfAborted()
  const { promise, reject } = Promise.withResolvers<never>()
  using _ = onAbort(signal, () => reject(signal.reason as Error))
  return await Promise.race([work, promise])
}
