import { isEqualIds } from '../../lib/collections/common-prefix.ts'
import { hasNaN } from '../../lib/has-nan.ts'
import { NumberColumn } from './number-column.ts'
import type { AnswerEnd, AnswerStart, ChoiceDelta, StreamEvent, ToolCallDelta } from '../../model/stream-event.ts'
import type { ToolCall } from '../../model/message.ts'
import type {
  Choice,
  FinishReason,
  Exactness,
  TurnResponse,
  Usage,
  VersionRange,
  WeightSpan,
} from '../../model/turn.ts'

const LOGPROB_MISSING = 'a logprob is missing'

/** Whether the engine reported all ids that it read and sampled. A log probability may be missing. */
export function hasExactIds({ grade, gradeReasons }: Pick<TurnResponse, 'grade' | 'gradeReasons'>): boolean {
  if (grade !== 'inferred') return grade === 'exact'
  return gradeReasons.length > 0 && gradeReasons.every((reason) => reason.endsWith(`: ${LOGPROB_MISSING}`))
}

/** Accumulates the events of one answer. Never throws and never changes an event. */
export class TurnCapture {
  #start: AnswerStart | undefined
  #usage: Usage | undefined
  #expectedPrompt: Int32Array | undefined
  readonly #choices = new Map<number, ChoiceCapture>()
  #end: AnswerEnd | undefined

  /** Sets the ids that were sent to the engine. If it reports other prompt ids, the turn is not exact. */
  expectPrompt(ids: Int32Array): void {
    this.#expectedPrompt = ids
  }

  /** `weights`: the versions that may have sampled the event's tokens; absent when the trainer set none. */
  add(event: StreamEvent, weights?: VersionRange): void {
    switch (event.type) {
      case 'answer-start':
        this.#start = event
        return
      case 'choice-delta':
        // The trainer's version takes precedence: an engine without one reports the same version for all weights.
        this.#choice(event.choice).add(event, weights ?? engineRange(this.#start))
        return
      case 'usage':
        this.#usage = event.usage
        return
      case 'answer-end':
        this.#end = event
        return
      case 'answer-error':
        return
    }
  }

  get hasTokens(): boolean {
    return this.#choices.values().some((choice) => choice.tokenCount > 0)
  }

  /** Undefined before the first event. May be called at any time; unfinished choices have the finish reason `cut`. */
  toResponse(): TurnResponse | undefined {
    if (this.#start === undefined) return undefined
    const choices = [...this.#choices.values()].map((choice) => choice.toChoice()).sort((a, b) => a.index - b.index)
    const promptIds = this.#start.promptTokenIds ?? this.#end?.promptTokenIds ?? new Int32Array()
    const gradeReasons = [...this.#gradeReasons(promptIds, choices)]
    return {
      id: this.#start.id,
      model: this.#start.model,
      created: this.#start.created,
      promptIds,
      choices,
      usage: this.#usage,
      grade: toGrade(promptIds, choices, gradeReasons),
      gradeReasons,
      weightVersion: choices[0]?.weightSpans?.[0]?.version,
      logprobMode: this.#start.logprobMode,
    }
  }

  /** Returns the answer so far as if it had arrived in one batch. */
  toEvents(): StreamEvent[] {
    if (this.#start === undefined) return []
    const deltas = [...this.#choices.values()].map((choice) => choice.toDelta())
    const usage = this.#usage === undefined ? [] : [{ type: 'usage' as const, usage: this.#usage }]
    return [this.#start, ...deltas, ...usage, ...(this.#end === undefined ? [] : [this.#end])]
  }

  /** Yields every reason to doubt that the ids are exactly those that the engine read and sampled. */
  *#gradeReasons(promptIds: Int32Array, choices: readonly Choice[]): Generator<string> {
    if (this.#end === undefined) yield 'the answer did not end'
    yield* this.#end?.doubts ?? []
    if (choices.length === 0) yield 'no choice came'
    if (promptIds.length === 0) yield 'the engine reported no prompt ids'
    else if (this.#expectedPrompt !== undefined && !isEqualIds(promptIds, this.#expectedPrompt)) {
      yield 'the engine read another prompt than it was given'
    }
    for (const choice of choices) {
      if (choice.ids.length === 0) yield `choice ${choice.index}: the engine reported no sampled ids`
      const given = this.#choices.get(choice.index)?.logprobCount ?? 0
      if (given !== choice.ids.length) yield `choice ${choice.index}: ${choice.ids.length} ids but ${given} logprobs`
      else if (hasNaN(choice.logprobs)) yield `choice ${choice.index}: ${LOGPROB_MISSING}`
      if (choice.finishReason === 'cut') yield `choice ${choice.index}: no finish reason`
    }
    if (this.#usage === undefined) {
      yield 'the engine reported no usage to check the counts against'
      return
    }
    const sampled = choices.reduce((sum, choice) => sum + choice.ids.length, 0)
    if (this.#usage.promptTokens !== promptIds.length) {
      yield `usage counts ${this.#usage.promptTokens} prompt tokens, ids are ${promptIds.length}`
    }
    if (this.#usage.completionTokens !== sampled) {
      yield `usage counts ${this.#usage.completionTokens} sampled tokens, ids are ${sampled}`
    }
  }

  #choice(index: number): ChoiceCapture {
    let choice = this.#choices.get(index)
    if (choice === undefined) this.#choices.set(index, (choice = new ChoiceCapture(index)))
    return choice
  }
}

/**
 * The engine reports the weight version at the end of an answer, and earlier tokens may be older. Undefined when the engine
 * reported no version before the call: then the age has no bound.
 */
function engineRange(start: AnswerStart | undefined): VersionRange | undefined {
  const { weightVersion, weightVersionBefore: before } = start ?? {}
  if (weightVersion === undefined || before === undefined) return undefined
  return before === weightVersion ? { version: before } : { version: before, newest: weightVersion }
}

function toGrade(promptIds: Int32Array, choices: readonly Choice[], reasons: readonly string[]): Exactness {
  if (reasons.length === 0) return 'exact'
  return promptIds.length > 0 && choices.some((choice) => choice.ids.length > 0) ? 'inferred' : 'text-only'
}

class ChoiceCapture {
  readonly #index: number
  readonly #ids = new NumberColumn<Int32Array>((length) => new Int32Array(length))
  readonly #logprobs = new NumberColumn<Float32Array>((length) => new Float32Array(length))
  readonly #toolCalls = new Map<number, ToolCall>()
  readonly #weightSpans: WeightSpan[] = []
  #text = ''
  #reasoning: string | undefined
  #finishReason: FinishReason | undefined
  #stopReason: string | number | undefined

  constructor(index: number) {
    this.#index = index
  }

  get tokenCount(): number {
    return this.#ids.length
  }

  get logprobCount(): number {
    return this.#logprobs.length
  }

  add(delta: ChoiceDelta, weights?: VersionRange): void {
    if (delta.text !== undefined) this.#text += delta.text
    if (delta.reasoning !== undefined) this.#reasoning = (this.#reasoning ?? '') + delta.reasoning
    for (const call of delta.toolCalls ?? []) this.#addToolCall(call)
    if (delta.ids !== undefined && delta.ids.length > 0) {
      const last = this.#weightSpans.at(-1)
      if (weights !== undefined && (weights.version !== last?.version || weights.newest !== last.newest)) {
        this.#weightSpans.push({ from: this.tokenCount, ...weights })
      }
      this.#ids.append(delta.ids)
    }
    if (delta.logprobs !== undefined) this.#logprobs.append(delta.logprobs)
    if (delta.finishReason !== undefined) this.#finishReason = delta.finishReason
    if (delta.stopReason !== undefined) this.#stopReason = delta.stopReason
  }

  #addToolCall(delta: ToolCallDelta): void {
    let call = this.#toolCalls.get(delta.index)
    if (call === undefined) this.#toolCalls.set(delta.index, (call = { id: '', name: '', arguments: '' }))
    if (delta.id !== undefined) call.id = delta.id
    if (delta.name !== undefined) call.name += delta.name
    if (delta.arguments !== undefined) call.arguments += delta.arguments
  }

  toDelta(): ChoiceDelta {
    const { ids, logprobs, message } = this.toChoice()
    return {
      type: 'choice-delta',
      choice: this.#index,
      ids,
      logprobs,
      text: this.#text === '' ? undefined : this.#text,
      reasoning: this.#reasoning,
      toolCalls:
        message.toolCalls.length === 0 ? undefined : message.toolCalls.map((call, index) => ({ index, ...call })),
      finishReason: this.#finishReason,
      stopReason: this.#stopReason,
    }
  }

  toChoice(): Choice {
    // When the counts differ, it is unknown which id lacks its log probability, so all are NaN.
    const aligned = this.logprobCount === this.tokenCount
    return {
      index: this.#index,
      message: {
        role: 'assistant',
        content: this.#text === '' ? [] : [{ type: 'text', text: this.#text }],
        toolCalls: [...this.#toolCalls].sort(([a], [b]) => a - b).map(([, call]) => call),
        reasoning: this.#reasoning,
      },
      finishReason: this.#finishReason ?? 'cut',
      stopReason: this.#stopReason,
      ids: this.#ids.toArray(),
      logprobs: aligned ? this.#logprobs.toArray() : new Float32Array(this.tokenCount).fill(Number.NaN),
      weightSpans: this.#weightSpans.length === 0 ? undefined : [...this.#weightSpans],
    }
  }
}
