import * as fc from 'fast-check'
import type { Delivery, Exactness, Steering } from '../../../src/model/turn.ts'

/** One answer to sample. Numbers select from the lists of the world. */
export interface AnswerScript {
  reasoning: number | null
  words: number[]
  call: { argument: number; style: 'spaced' | 'compact' | 'broken' } | null
  /** `length` and `cut`: ends after `keeps` tokens; `stop-string`: complete, but without the end-of-turn token. */
  ending: 'end-of-turn' | 'stop-string' | 'length' | 'cut'
  keeps: number
  /** Every `splitEvery`-th token is replaced by smaller tokens; 0: as the tokenizer encodes. */
  splitEvery: number
}

/** Defects of the record of a call. */
export interface Flaws {
  grade: Exactness
  isMissingLogprob: boolean
  hasNoIds: boolean
  delivery: Delivery
  /** How the request steered the sampling. `unnamed`: the engine masked its log probabilities for another reason. */
  steering: readonly Steering[] | 'unnamed'
}

/** An earlier attempt of the same request, which the harness does not continue. */
export interface Attempt {
  outcome: 'delivered' | 'undelivered' | 'partial' | 'failed' | 'unfinished' | 'empty'
  /** Null: samples the same tokens as the last attempt. */
  answer: AnswerScript | null
  isNamed: boolean
}

/** One action of the harness. Fields that a kind does not use are ignored. */
export interface Op {
  kind: 'go-on' | 'branch' | 'compact' | 'spawn' | 'side-call' | 'resume' | 'silent'
  /** Index of its conversation. */
  agent: number
  /** Message to the model: a user message, or a tool result if the model called a tool. */
  text: number
  /** More than one: n > 1. */
  answers: AnswerScript[]
  /** The choice that the harness continues. */
  pick: number
  attempts: Attempt[]
  flaws: Flaws
  weights: 'same' | 'new' | 'change-midway' | 'uncertain-midway' | 'known-midway'
  /** Milliseconds since the last call began, and until this one ends. */
  wait: number
  takes: number
  /** Whether the gateway rendered the history instead of an exact continuation. */
  isRendered: boolean
  changesTools: boolean
}

/** Changes of the records before the builder reads them. */
export interface RecordScript {
  order: number[]
  otherOrder: number[]
  duplicates: { at: number; as: 'same' | 'intent' | 'partial' | 'undelivered' | 'failed' }[]
  drops: number[]
}

export interface SessionScript {
  /** `literal`: prompt and answer are repeated token by token, as in the gateway's continuation. */
  history: 'literal' | 'rendered'
  /** How the harness sends answers back in its history. */
  echo: 'verbatim' | 'reasoning-stripped' | 'arguments-reprinted'
  knowsWeights: boolean
  ops: Op[]
  records: RecordScript
}

/** Draws the usual case with a high weight. */
function mostly<T>(usual: fc.Arbitrary<T>, weight: number, ...rare: fc.Arbitrary<T>[]): fc.Arbitrary<T> {
  return fc.oneof({ arbitrary: usual, weight }, ...rare.map((arbitrary) => ({ arbitrary, weight: 1 })))
}

const small = (max: number): fc.Arbitrary<number> => fc.nat({ max })

const answer: fc.Arbitrary<AnswerScript> = fc.record({
  reasoning: fc.option(small(4), { freq: 2 }),
  words: fc.array(small(7), { maxLength: 3 }),
  call: fc.option(
    fc.record({
      argument: small(4),
      style: mostly<'spaced' | 'compact' | 'broken'>(
        fc.constant('spaced'),
        3,
        fc.constant('compact'),
        fc.constant('broken'),
      ),
    }),
    { freq: 2 },
  ),
  ending: mostly<AnswerScript['ending']>(
    fc.constant('end-of-turn'),
    6,
    fc.constant('stop-string'),
    fc.constant('length'),
    fc.constant('cut'),
  ),
  keeps: small(6),
  splitEvery: small(3),
})

const NO_FLAWS: Flaws = {
  grade: 'exact',
  isMissingLogprob: false,
  hasNoIds: false,
  delivery: 'delivered',
  steering: [],
}
const flaws: fc.Arbitrary<Flaws> = mostly<Flaws>(
  fc.constant(NO_FLAWS),
  5,
  fc.record({
    grade: fc.constantFrom('exact', 'inferred', 'text-only'),
    isMissingLogprob: fc.boolean(),
    hasNoIds: mostly(fc.constant(false), 3, fc.constant(true)),
    delivery: fc.constantFrom('delivered', 'undelivered', 'unknown'),
    steering: fc.constantFrom<Flaws['steering'][]>([], [], ['tool-choice'], ['response-format', 'prefill'], 'unnamed'),
  }),
)

const attempt: fc.Arbitrary<Attempt> = fc.record({
  outcome: fc.constantFrom('delivered', 'undelivered', 'partial', 'failed', 'unfinished', 'empty'),
  answer: fc.option(answer, { freq: 2 }),
  isNamed: fc.boolean(),
})

const op: fc.Arbitrary<Op> = fc.record({
  kind: mostly<Op['kind']>(
    fc.constant('go-on'),
    8,
    fc.constant('branch'),
    fc.constant('compact'),
    fc.constant('spawn'),
    fc.constant('side-call'),
    fc.constant('resume'),
    fc.constant('silent'),
  ),
  agent: small(5),
  text: small(7),
  answers: mostly(
    answer.map((one) => [one]),
    5,
    fc.array(answer, { minLength: 2, maxLength: 3 }),
  ),
  pick: small(2),
  attempts: mostly(fc.constant([]), 5, fc.array(attempt, { minLength: 1, maxLength: 2 })),
  flaws,
  weights: mostly<Op['weights']>(
    fc.constant('same'),
    5,
    fc.constant('new'),
    fc.constant('change-midway'),
    fc.constant('uncertain-midway'),
    fc.constant('known-midway'),
  ),
  wait: small(2),
  takes: small(3),
  isRendered: mostly(fc.constant(false), 8, fc.constant(true)),
  changesTools: mostly(fc.constant(false), 12, fc.constant(true)),
})

const records: fc.Arbitrary<RecordScript> = fc.record({
  order: fc.array(small(99), { maxLength: 30 }),
  otherOrder: fc.array(small(99), { minLength: 2, maxLength: 30 }),
  duplicates: mostly(
    fc.constant([]),
    2,
    fc.array(fc.record({ at: small(30), as: fc.constantFrom('same', 'intent', 'partial', 'undelivered', 'failed') }), {
      minLength: 1,
      maxLength: 4,
    }),
  ),
  drops: mostly(fc.constant([]), 2, fc.array(small(30), { minLength: 1, maxLength: 3 })),
})

/** Draws all properties of a session except its model; shrinks to the relevant ops. */
export function sessionScript(maxOps: number): fc.Arbitrary<SessionScript> {
  return fc.record({
    history: mostly<SessionScript['history']>(fc.constant('literal'), 2, fc.constant('rendered')),
    echo: fc.constantFrom('verbatim', 'reasoning-stripped', 'arguments-reprinted'),
    knowsWeights: fc.boolean(),
    ops: fc.array(op, { minLength: 1, maxLength: maxOps, size: 'max' }),
    records,
  })
}
