import { EXIT, type ExitCode } from './command.ts'

/** SIGINT and SIGTERM, counted. */
export interface StopSignals extends Disposable {
  /** Aborted by the first signal: stop in order. */
  readonly first: AbortSignal
  /** Aborted by the second signal: stop fast. The third has its default action. */
  readonly second: AbortSignal
  /** The first signal. */
  readonly name: NodeJS.Signals | undefined
}

/** A parent process may forward the SIGINT that the terminal already sent; a user does not press Ctrl-C twice this fast. */
const SAME_KEY_MS = 300

/** With `twoSteps` the second signal already has its default action. */
export function listenForStop({ twoSteps = false }: { twoSteps?: boolean } = {}): StopSignals {
  const first = new AbortController()
  const second = new AbortController()
  let name: NodeJS.Signals | undefined
  let receivedAt = 0
  const onSignal = (signal: NodeJS.Signals): void => {
    const isSameKey = signal === 'SIGINT' && name === 'SIGINT' && performance.now() - receivedAt < SAME_KEY_MS
    if (isSameKey) return
    receivedAt = performance.now()
    if (!first.signal.aborted) {
      name = signal
      first.abort(new Error(`Stopped by ${signal}.`))
      return
    }
    // Before anything else, so that a third signal has its default action.
    stop()
    second.abort(new Error(`Stopped by a second ${signal}.`))
    if (twoSteps) process.kill(process.pid, signal)
  }
  const stop = (): void => void process.off('SIGINT', onSignal).off('SIGTERM', onSignal)
  process.on('SIGINT', onSignal).on('SIGTERM', onSignal)
  return {
    first: first.signal,
    second: second.signal,
    get name() {
      return name
    },
    [Symbol.dispose]: stop,
  }
}

/** Returns a signal that SIGINT, SIGTERM and the further signals abort; until it is disposed, they do not end the process. */
export function listenForInterrupt(...more: NodeJS.Signals[]): Disposable & { readonly signal: AbortSignal } {
  const controller = new AbortController()
  const names: NodeJS.Signals[] = ['SIGINT', 'SIGTERM', ...more]
  const stop = (): void => controller.abort()
  for (const name of names) process.on(name, stop)
  return { signal: controller.signal, [Symbol.dispose]: () => names.forEach((name) => process.off(name, stop)) }
}

/** SIGINT is reported as an interruption; SIGTERM of a supervisor is a normal end. */
export function exitCode({ name }: StopSignals): ExitCode {
  return name === 'SIGINT' ? EXIT.interrupted : EXIT.done
}
