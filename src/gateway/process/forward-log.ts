import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import type { Logger } from 'pino'

const LEVELS: Readonly<Record<number, 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'fatal'>> = {
  10: 'trace',
  20: 'debug',
  30: 'info',
  40: 'warn',
  50: 'error',
  60: 'fatal',
}

/** Writes the log lines of another process to this logger. Other lines, such as V8's fatal errors, become errors. */
export function forwardLog(stream: Readable, logger: Logger): void {
  createInterface({ input: stream }).on('line', (line) => {
    const entry = parseEntry(line)
    if (entry === undefined) {
      if (line.trim() !== '') logger.error({ line: line.slice(0, 2000) }, 'gateway process wrote to standard error')
      return
    }
    const { level, msg, time: _time, pid: _pid, hostname: _hostname, ...fields } = entry
    logger[LEVELS[level] ?? 'info'](fields, msg)
  })
}

interface LogEntry {
  level: number
  msg?: string
  [field: string]: unknown
}

function parseEntry(line: string): LogEntry | undefined {
  if (!line.startsWith('{')) return undefined
  try {
    const entry = JSON.parse(line) as Partial<LogEntry>
    return typeof entry.level === 'number' ? (entry as LogEntry) : undefined
  } catch {
    return undefined
  }
}
