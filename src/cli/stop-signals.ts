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

export function listenForStop(): StopSignals {
  const first = new AbortController()
  const second = new AbortController()
  let name: NodeJS.Signals | undefined
  const onSignal = (signal: NodeJS.Signals): void => {
    if (first.signal.aborted) {
      second.abort(new Error(`${signal} came a second time.`))
      stop()
      return
    }
    name = signal
    first.abort(new Error(`${signal} asked for the end.`))
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
