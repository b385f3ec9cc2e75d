import { EXIT, type ExitCode } from './command.ts'

/** What a person or a supervisor asks of a process that goes on by itself. */
export interface StopSignals extends Disposable {
  /** Aborted by the first request to end. */
  readonly first: AbortSignal
  /** By the second: that it should not take long. The third ends the process as it would without us. */
  readonly second: AbortSignal
  /** Which the first was. */
  readonly name: NodeJS.Signals | undefined
}

/** Whoever starts us may pass Ctrl-C on that the terminal has given us already; no finger is as fast. */
const SAME_KEY_MS = 300

/** `twoSteps`: there is nothing that a second request could hurry, so it is what the third is elsewhere. */
export function listenForStop({ twoSteps = false }: { twoSteps?: boolean } = {}): StopSignals {
  const first = new AbortController()
  const second = new AbortController()
  let name: NodeJS.Signals | undefined
  let heardAt = 0
  const onSignal = (signal: NodeJS.Signals): void => {
    const isSameKey = signal === 'SIGINT' && name === 'SIGINT' && performance.now() - heardAt < SAME_KEY_MS
    if (isSameKey) return
    heardAt = performance.now()
    if (!first.signal.aborted) {
      name = signal
      first.abort(new Error(`${signal} asked for the end.`))
      return
    }
    // First of all: one that came while we still listen, and do no more, would be lost.
    stop()
    second.abort(new Error(`${signal} came a second time.`))
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

/** Whoever ended it with Ctrl-C is told so; a supervisor got what it asked for. */
export function exitCode({ name }: StopSignals): ExitCode {
  return name === 'SIGINT' ? EXIT.interrupted : EXIT.done
}
