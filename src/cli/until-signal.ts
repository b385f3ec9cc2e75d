/** The first request to end. A second one ends the process at once, as it would without us. */
export function untilSignal(): Promise<NodeJS.Signals> {
  const { promise, resolve } = Promise.withResolvers<NodeJS.Signals>()
  process.once('SIGINT', resolve).once('SIGTERM', resolve)
  return promise
}
