/** Runs work with limited concurrency, in order of arrival. */
export type Limit = <T>(work: () => Promise<T>) => Promise<T>

export function createLimit(width: number): Limit {
  const waiting: (() => void)[] = []
  let running = 0
  return async (work) => {
    if (running >= width) await new Promise<void>((resolve) => waiting.push(resolve))
    else running += 1
    try {
      return await work()
    } finally {
      // The slot passes directly to the next waiter, so that a later call cannot overtake it.
      const next = waiting.shift()
      if (next === undefined) running -= 1
      else next()
    }
  }
}
