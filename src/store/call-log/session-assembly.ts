import { RolloutError } from '../../model/failure.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { Choice, Delivery, Turn, TurnResponse } from '../../model/turn.ts'
import { checkOpening, corrupt, unfinishedReason } from './problems.ts'
import type { PromptBase } from './recent-prompts.ts'
import { joinText } from './recent-texts.ts'
import {
  type CloseHeader,
  type EndHeader,
  type IntentHeader,
  type OpenHeader,
  RecordKind,
  type StoredRecord,
  toFloat32,
  toInt32,
  toText,
} from './record.ts'
import { promptLength, type ResolvedPrompt, resolvePrompts, type StoredPrompt } from './resolve-prompts.ts'

type Recorded<Kind extends RecordKind> = Extract<StoredRecord, { kind: Kind }>

interface TurnDraft {
  intent: IntentHeader
  request: string
  end?: { header: EndHeader; prompt: StoredPrompt | undefined; logprobs: Float32Array[] }
  delivery?: Delivery
}

/**
 * Assembles the records of one log, in the order of the file. With `salvage`, records may be missing: records that depend on
 * them are skipped with a reason. Without it, a missing record is an error.
 */
export class SessionAssembly {
  readonly #sessionId: string
  readonly #path: string
  readonly #salvage: boolean
  readonly #drafts = new Map<string, TurnDraft>()
  /** By sequence, for records that refer to them. */
  readonly #requests = new Map<number, string>()
  readonly #prompts = new Map<number, StoredPrompt>()
  readonly #reasons = new Set<string>()
  #opening: OpenHeader | undefined
  /** The close record if it is the last record, and the counts before it. */
  #close: { header: CloseHeader; turns: number; records: number } | undefined
  #records = 0
  #turns = 0
  #nextSequence = 0

  constructor(sessionId: string, path: string, salvage: boolean) {
    this.#sessionId = sessionId
    this.#path = path
    this.#salvage = salvage
  }

  addReason(reason: string): void {
    this.#reasons.add(reason)
  }

  /** Copies the data that it needs from the record. */
  add(record: StoredRecord, offset: number): void {
    try {
      this.#checkSequence(record.sequence)
      this.#apply(record)
    } catch (error) {
      if (error instanceof RolloutError) throw error
      const problem = error instanceof Error ? error.message : String(error)
      if (!this.#salvage) throw corrupt(this.#path, offset, problem)
      this.addReason(`record ${record.sequence} was skipped: ${problem}`)
    }
  }

  /** `createdAt`: used if the log has no opening record. */
  finish(createdAt: number): SessionRecord {
    this.#checkClose()
    const resolved = resolvePrompts([...this.#prompts.values()])
    const turns = [...this.#drafts.values()].map((draft) => this.#toTurn(draft, resolved))
    return {
      id: this.#sessionId,
      createdAt: this.#opening?.createdAt ?? createdAt,
      origin: this.#opening?.origin ?? {},
      turns: turns.sort((a, b) => a.index - b.index),
      complete: this.#reasons.size === 0,
      incompleteReasons: [...this.#reasons],
    }
  }

  #checkSequence(sequence: number): void {
    const expected = this.#nextSequence
    if (sequence < expected) throw new Error(`record ${sequence} follows record ${expected - 1}`)
    this.#nextSequence = sequence + 1
    if (sequence === expected) return
    const missing = `records ${expected} to ${sequence - 1} are missing`
    if (!this.#salvage) throw new Error(missing)
    this.addReason(missing)
  }

  #apply(record: StoredRecord): void {
    const records = this.#records
    this.#records += 1
    this.#close = undefined
    switch (record.kind) {
      case RecordKind.open:
        checkOpening(record.header, this.#sessionId, this.#path)
        this.#opening ??= record.header
        break
      case RecordKind.intent:
        this.#applyIntent(record)
        break
      case RecordKind.end:
        this.#applyEnd(record)
        break
      case RecordKind.delivery: {
        const draft = this.#drafts.get(record.header.turnId)
        if (draft !== undefined) draft.delivery = record.header.delivery
        break
      }
      case RecordKind.close:
        this.#close = { header: record.header, turns: this.#turns, records }
        break
      case RecordKind.pack:
        throw new Error('a pack inside a pack')
    }
  }

  #applyIntent({ header, sequence, columns }: Recorded<typeof RecordKind.intent>): void {
    this.#turns += 1
    const middle = toText(columns[0])
    const base = header.base === undefined ? undefined : this.#requests.get(header.base.record)
    if (header.base !== undefined && base === undefined) {
      throw new Error(`the request of turn ${header.id} refers to record ${header.base.record}, which is missing`)
    }
    const request = header.base === undefined ? middle : joinText(base ?? '', header.base, middle)
    this.#requests.set(sequence, request)
    if (this.#drafts.has(header.id)) this.addReason(`turn ${header.id} was started twice; the first counts`)
    else this.#drafts.set(header.id, { intent: header, request })
  }

  #applyEnd({ header, sequence, columns }: Recorded<typeof RecordKind.end>): void {
    let prompt: StoredPrompt | undefined
    const logprobs: Float32Array[] = []
    if (header.response !== undefined) {
      const arrays = header.response.choices.map((_, index) => ({
        ids: toInt32(columns[1 + 2 * index]),
        logprobs: toFloat32(columns[2 + 2 * index]),
      }))
      prompt = { base: this.#findBase(header), tail: toInt32(columns[0]), sampled: arrays.map(({ ids }) => ids) }
      logprobs.push(...arrays.map((choice) => choice.logprobs))
      this.#prompts.set(sequence, prompt)
    }
    const draft = this.#drafts.get(header.turnId)
    if (draft === undefined) this.addReason(`turn ${header.turnId} has an end without a start`)
    else if (draft.end !== undefined) this.addReason(`turn ${header.turnId} ended twice; the first counts`)
    else draft.end = { header, prompt, logprobs }
  }

  #findBase({ turnId, base }: EndHeader): StoredPrompt['base'] {
    if (base === undefined) return undefined
    const prompt = this.#prompts.get(base.record)
    if (prompt === undefined) {
      throw new Error(`the prompt of turn ${turnId} refers to record ${base.record}, which is missing`)
    }
    if (base.length > maxLength(prompt, base)) throw new Error(`the prompt of turn ${turnId} does not match its base`)
    return { prompt, choice: base.choice, length: base.length }
  }

  /** The log is complete only if its close record says so and agrees with the records read. */
  #checkClose(): void {
    if (this.#opening === undefined) this.addReason('the opening record is missing')
    if (this.#close === undefined) {
      this.addReason('the log was not closed')
    } else {
      const { header, turns, records } = this.#close
      for (const reason of header.reasons) this.addReason(reason)
      if (turns !== header.turns || records !== header.records) {
        const stated = `${header.turns} turns in ${header.records} records`
        this.addReason(`the log was closed with ${stated}, but ${turns} in ${records} were found`)
      }
      if (!header.complete && this.#reasons.size === 0) this.addReason('the log was closed as incomplete')
    }
    for (const draft of this.#drafts.values()) {
      if (draft.end === undefined) this.addReason(unfinishedReason(draft.intent.id))
    }
  }

  #toTurn(draft: TurnDraft, resolved: ReadonlyMap<StoredPrompt, ResolvedPrompt>): Turn {
    const { base: _base, ...intent } = draft.intent
    const turn: Turn = {
      ...intent,
      sessionId: this.#sessionId,
      request: draft.request,
      forced: {},
      delivery: draft.delivery ?? 'unknown',
    }
    if (draft.end === undefined) return turn
    const { turnId: _turnId, base: _promptBase, response, ...end } = draft.end.header
    Object.assign(turn, end)
    const prompt = draft.end.prompt === undefined ? undefined : resolved.get(draft.end.prompt)
    if (response !== undefined && prompt !== undefined) turn.response = toResponse(response, prompt, draft.end.logprobs)
    return turn
  }
}

function toResponse(
  { choices, ...about }: NonNullable<EndHeader['response']>,
  prompt: ResolvedPrompt,
  logprobs: readonly Float32Array[],
): TurnResponse {
  const whole = choices.map((choice, index): Choice => ({
    ...choice,
    ids: prompt.sampled[index] ?? new Int32Array(0),
    logprobs: logprobs[index] ?? new Float32Array(0),
  }))
  return { ...about, promptIds: prompt.ids, choices: whole }
}

function maxLength(prompt: StoredPrompt, { choice }: PromptBase): number {
  return promptLength(prompt) + (prompt.sampled[choice]?.length ?? 0)
}
