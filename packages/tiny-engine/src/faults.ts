import { setTimeout as sleep } from 'node:timers/promises'
import { EngineError } from './errors.ts'
import type { EventWriter } from './event-stream.ts'
import type { Exchange } from './exchange.ts'
import { isLater } from './generation.ts'
import type { Fault } from './policies/policy.ts'

/** Bytes that replace JSON. */
const NOT_JSON = '<html><body>502 Bad Gateway'

/**
 * Injects a fault before the answer. Returns true if the fault was the answer. Without a stream, also injects faults that
 * wait for tokens, because they cannot occur later.
 */
export async function faultBefore(fault: Fault | undefined, exchange: Exchange, isStream: boolean): Promise<boolean> {
  if (fault === undefined || (isStream && isLater(fault))) return false
  switch (fault.kind) {
    case 'status':
      exchange.sendError(
        new EngineError(fault.status, fault.message ?? 'This fault was scripted.', {
          retryAfterSeconds: fault.retryAfterSeconds,
        }),
      )
      return true
    case 'reset':
      exchange.request.socket.resetAndDestroy()
      return true
    case 'stall':
      await sleep(fault.ms, undefined, { signal: exchange.signal }).catch(() => {})
      return false
    case 'malformed':
      exchange.sendText(NOT_JSON, isStream ? 'text/event-stream; charset=utf-8' : 'application/json')
      return true
    case 'cut':
    case 'omit':
    case 'wrong-length':
      return false
  }
}

/** Injects a fault in the middle of a stream. Returns true if the stream must end. */
export async function streamFault(
  fault: Fault,
  stream: EventWriter,
  signal: AbortSignal,
  begun: string,
): Promise<boolean> {
  switch (fault.kind) {
    case 'reset':
      await stream.flushed()
      stream.destroy()
      return true
    case 'stall':
      await stream.flushed()
      await sleep(fault.ms, undefined, { signal }).catch(() => {})
      return false
    case 'cut':
      stream.end()
      return true
    case 'malformed':
      // An event that starts correctly and is truncated.
      stream.write(`${begun}{"ind\n\n`)
      return false
    case 'status':
    case 'omit':
    case 'wrong-length':
      return false
  }
}

/** Sends a truncated body as the whole response. */
export function cutBody(body: string, fault: Fault | undefined): string {
  return fault?.kind === 'cut' ? body.slice(0, Math.floor(body.length / 2)) : body
}

export type ReportedField = 'token_ids' | 'prompt_token_ids' | 'logprobs' | 'usage'

/** Whether a requested field must be omitted. */
export function isOmitted(fault: Fault | undefined, field: ReportedField): boolean {
  return fault?.kind === 'omit' && fault.fields.includes(field)
}

/** Whether this entry is dropped so that counts disagree: the first of a choice. */
export function isDropped(fault: Fault | undefined, field: 'token_ids' | 'logprobs', position: number): boolean {
  return position === 0 && fault?.kind === 'wrong-length' && fault.field === field
}
