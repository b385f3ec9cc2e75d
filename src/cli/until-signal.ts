/** Resolves on the first SIGINT or SIGTERM. A second signal has its default action. */
export function untilSignal(): Promise<NodeJS.Signals> {
  const { promise, resolve } = Promise.withResolvers<NodeJS.Signals>()
  process.once('SIGINT', resolve).once('SIGTERM', resolve)
  return promise
}
