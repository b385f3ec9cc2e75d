import pino, { type Logger } from 'pino'
import { toVisibleJson, toVisibleLine } from '../lib/visible-text.ts'
import { RolloutError } from '../model/failure.ts'

interface LogStream {
  isTTY?: boolean
  write(text: string): unknown
}

/** Logs to standard error: JSON lines, or short text lines on a terminal. */
export function createLogger(level: string, stream: LogStream = process.stderr): Logger {
  // pino.destination is faster because it bypasses Node's stream; on a terminal it would garble the progress bars.
  const options = { level, serializers: { err: toError }, hooks: { streamWrite: toVisibleJson } }
  if (!stream.isTTY && stream === process.stderr) return pino(options, pino.destination(2))
  return pino(options, { write: (line: string) => void stream.write(stream.isTTY ? toText(line) : line) })
}

/** Logs code and message of a known failure, and the stack of any other error. */
function toError(error: unknown): unknown {
  if (error instanceof RolloutError) return { code: error.code, message: error.message }
  return error instanceof Error ? pino.stdSerializers.err(error) : error
}

/** `12:03:11 warn  a lease was lost  sessionId=ses_1`. */
export function toText(line: string): string {
  const { time, level, msg, err, pid: _, hostname: __, ...fields } = JSON.parse(line) as LogLine
  const clock = new Date(time).toTimeString().slice(0, 8)
  const name = (pino.levels.labels[level] ?? String(level)).padEnd(5)
  const more = Object.entries(fields).map(
    ([key, value]) => `${key}=${typeof value === 'string' ? value : JSON.stringify(value)}`,
  )
  const why = err === undefined ? [] : [err.message ?? '']
  return `${toVisibleLine([`${clock} ${name} ${msg ?? ''}`, ...more, ...why].join('  '))}\n`
}

interface LogLine {
  time: number
  level: number
  msg?: string
  err?: { message?: string }
  [field: string]: unknown
}
