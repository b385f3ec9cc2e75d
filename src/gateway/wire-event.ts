import type { JsonBytes } from '../lib/json/json-bytes.ts'
import type { AnswerEnd, AnswerError, AnswerStart, ChoiceDelta, UsageReport } from '../model/stream-event.ts'

/**
 * Stream events inside the gateway, between an upstream and a dialect. They are the events of the model, with optional
 * fields that carry the engine's own JSON: a dialect of the same wire relays it without change. Other dialects and the
 * capture ignore these fields.
 */
export type WireEvent = StartEvent | DeltaEvent | UsageEvent | AnswerEnd | AnswerError

export type WireFields = Readonly<Record<string, unknown>>

export interface StartEvent extends AnswerStart {
  /** `promptTokenIds` as bytes of the wire, where they were not parsed as JSON. */
  promptTokenBytes?: JsonBytes
  /** Fields of the wire that the model does not have. */
  extra?: WireFields
}

export interface DeltaEvent extends ChoiceDelta {
  /** The choice on the wire. */
  wire?: WireFields
  /** Members of `wire` that were not parsed, as `JsonBytes`. In `wire` they are getters that are not enumerable. */
  unread?: WireFields
  /** Present when the event represents several chunks of the wire, or one chunk of a form that repeats. */
  run?: ChunkRun
}

export interface UsageEvent extends UsageReport {
  /** The usage on the wire. */
  wire?: WireFields
}

/** Consecutive chunks that differ only in their text, ids and log probabilities. */
export interface ChunkRun {
  /** The same object for all runs of one form. */
  readonly form: ChunkForm
  /** The text or reasoning of each chunk, as JSON without quotes. */
  readonly texts: readonly string[]
  readParts(): readonly ChunkParts[]
}

export interface ChunkForm {
  /** Returns the event of a chunk that has this form and these parts. */
  withParts(parts: ChunkParts): DeltaEvent
}

/** The parts in which chunks of one form differ, as JSON without the enclosing quotes or brackets. */
export interface ChunkParts {
  text: string
  logprobs: string
  ids: string
}
