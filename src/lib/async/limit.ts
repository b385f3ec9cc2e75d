/** Runs work, at most so many pieces at a time, the others in the order they came. */
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
      // The slot goes straight to the next in line, so nobody who comes later can overtake it.
      const next = waiting.shift()
      if (next === undefined) running -= 1
      else next()
    }
  }
}
