import assert from 'node:assert/strict'
import type { Exclusion, Sample, Span } from '../../src/model/sample.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import type { Choice, Turn } from '../../src/model/turn.ts'
import type { BuiltSession } from '../../src/trajectory/build-session.ts'
import type { CallFilter } from '../../src/trajectory/select-calls.ts'
import { assertCallsBeforeResults, expectedMessages, isJson, requestOf } from './message-oracle.ts'

/**
 * Properties of training data, checked against the records alone: nothing here calls the code under test, and everything is
 * written in the slow and simple way. A check throws if a property is violated.
 */

export const KINDS = ['per_request', 'prefix_merging', 'prefix_tree'] as const
export type Kind = (typeof KINDS)[number]

export interface Trial {
  session: SessionRecord
  /** The same records in another order. */
  reordered: SessionRecord
  filter: CallFilter
  build(kind: Kind, session: SessionRecord): BuiltSession
}

/** One recorded answer. */
export interface RecordedCall {
  key: string
  turn: Turn
  choice: Choice
  promptIds: Int32Array
  ids: Int32Array
}

/** Output of one builder. */
export interface Made {
  kind: Kind
  built: BuiltSession
  samples: readonly Sample[]
}

/** Input of the checks; sessions are built on first use. */
export class Evidence {
  readonly trial: Trial
  readonly turns: readonly Turn[]
  readonly calls: ReadonlyMap<string, RecordedCall>
  readonly #made = new Map<Kind, Made>()

  constructor(trial: Trial) {
    this.trial = trial
    this.turns = onePerTurn(trial.session.turns)
    this.calls = new Map(this.turns.flatMap(callsOf).map((call) => [call.key, call]))
  }

  of(kind: Kind): Made {
    let made = this.#made.get(kind)
    if (made === undefined) this.#made.set(kind, (made = make(this.trial, kind, this.trial.session)))
    return made
  }

  call(key: string): RecordedCall {
    return this.calls.get(key) ?? assert.fail(`${key} was never recorded`)
  }
}

function make({ build }: Trial, kind: Kind, session: SessionRecord): Made {
  const built = build(kind, session)
  return { kind, built, samples: [...built.samples()] }
}

/** Returns the most complete record of each turn. */
function onePerTurn(records: readonly Turn[]): Turn[] {
  const tells = (turn: Turn): number =>
    (turn.endedAt === undefined ? 0 : 1e9) +
    (turn.response === undefined ? 0 : 1000 * (1 + sum(turn.response.choices, ({ ids }) => ids.length))) +
    (turn.failure === undefined ? 10 : 0) +
    ['undelivered', 'unknown', 'delivered'].indexOf(turn.delivery)
  const best = new Map<string, Turn>()
  for (const turn of records) {
    const other = best.get(turn.id)
    if (other === undefined || tells(turn) > tells(other)) best.set(turn.id, turn)
  }
  return [...best.values()]
}

function callsOf(turn: Turn): RecordedCall[] {
  const { response } = turn
  if (response === undefined) return []
  return response.choices.map((choice) => ({
    key: `${turn.id}#${choice.index}`,
    turn,
    choice,
    promptIds: response.promptIds,
    ids: choice.ids,
  }))
}

// --- the checks -------------------------------------------------------------------------------------------------------

export const invariants = {
  /** Every sampled token is trained exactly once, or listed as excluded. */
  once: eachKind((made, evidence) => {
    const placed = new Map<string, Set<number>>()
    for (const sample of made.samples) {
      for (const { call, offset } of trainedTokens(sample, evidence)) {
        const offsets = placed.get(call.key) ?? new Set()
        assert(!offsets.has(offset), `token ${offset} of ${call.key} is trained twice`)
        placed.set(call.key, offsets.add(offset))
      }
    }
    const excluded = excludedCalls(made.built.exclusions)
    for (const { key, ids } of evidence.calls.values()) {
      const trained = placed.get(key)?.size ?? 0
      const exclusion = excluded.get(key)
      if (exclusion === undefined) {
        assert.equal(trained, ids.length, `${key} has tokens that are neither trained nor excluded`)
        assert(ids.length > 0, `${key} is empty and not listed`)
      } else {
        assert.equal(trained, 0, `${key} is both trained and excluded`)
        assert.equal(exclusion.tokens, ids.length, `${key} is excluded with a wrong count`)
        assert.notEqual(exclusion.detail, '', `${key} is excluded without a reason`)
      }
    }
    for (const key of excluded.keys()) assert(evidence.calls.has(key), `${key} is excluded but was never recorded`)
  }),

  /** Turns without an answer and duplicate records are listed, each once. */
  listed: eachKind(({ built }, { turns, trial }) => {
    const silent = turns.filter((turn) => callsOf(turn).length === 0).map(({ id }) => id)
    const noAnswer = built.exclusions.filter(({ choice, reason }) => choice === undefined && reason !== DUPLICATE)
    assert.deepEqual(noAnswer.map(({ turnId }) => turnId).toSorted(), silent.toSorted(), 'turns without an answer')
    const doubles = built.exclusions.filter(({ reason }) => reason === DUPLICATE)
    assert.equal(doubles.length, trial.session.turns.length - turns.length, 'superfluous records')
    assert(
      [...noAnswer, ...doubles].every(({ tokens, detail }) => tokens === 0 && detail !== ''),
      'without tokens, with a reason',
    )
  }),

  /** Only sampled tokens have mask 1, with the log probabilities of their call. */
  sampled: eachKind(({ samples }, evidence) => {
    for (const sample of samples) {
      const { length } = sample.ids
      assert(
        sample.mask.length === length && sample.logprobs.length === length,
        `${sample.id} has arrays of several lengths`,
      )
      const logprobBits = bitsOf(sample.logprobs)
      const isSampled = new Uint8Array(length)
      for (const { key, from, to } of sample.calls) {
        const call = evidence.call(key)
        assert.equal(to - from, call.ids.length, `${key} has another length in ${sample.id}`)
        const recorded = bitsOf(call.choice.logprobs)
        for (let i = from; i < to; i++) {
          assert.equal(sample.ids[i], call.ids[i - from], `token ${i} of ${sample.id} is not what ${key} sampled`)
          assert.equal(logprobBits[i], recorded[i - from], `the logprob of token ${i} of ${sample.id}`)
          isSampled[i] = 1
        }
      }
      for (let i = 0; i < length; i++) {
        assert(sample.mask[i] === 0 || isSampled[i] === 1, `token ${i} of ${sample.id} is trained but not sampled`)
        assert(
          isSampled[i] === 1 || Number.isNaN(sample.logprobs[i]),
          `token ${i} of ${sample.id} has a foreign logprob`,
        )
      }
    }
  }),

  /** The tokens before every trained token are those that the engine had read when it sampled the token. */
  context: eachKind(({ samples, built }, evidence) => {
    for (const sample of samples) {
      for (const { call, offset, at } of trainedTokens(sample, evidence)) {
        if (offset > 0) continue
        assert.equal(at, call.promptIds.length, `${call.key} has a context of another length in ${sample.id}`)
        assert(startsWith(sample.ids, call.promptIds), `${call.key} has a foreign context in ${sample.id}`)
      }
      assert.equal(sample.mismatchedTokens, 0)
    }
    assert.equal(built.summary.mismatchedTokens, 0)
  }),

  /** The order of the records does not matter. Checks one builder per session; many sessions cover all builders. */
  order(evidence) {
    const { trial, turns } = evidence
    const kind = KINDS[turns.length % KINDS.length] as Kind
    const other = make(trial, kind, trial.reordered)
    assert.deepEqual(digest(other), digest(evidence.of(kind)), `${kind} depends on the order of records`)
  },

  /** Counts add up, to each other and to the records. */
  counts: eachKind(({ built, samples }, { calls, turns }) => {
    const { summary, exclusions } = built
    const { tokens } = summary
    assert.equal(tokens.sampled, tokens.trained + tokens.excluded, 'sampled = trained + excluded')
    assert.equal(
      tokens.sampled,
      sum(calls.values(), ({ ids }) => ids.length),
      'sampled tokens',
    )
    assert.equal(
      tokens.trained,
      sum(samples, ({ mask }) => sum(mask, (bit) => bit)),
      'trained tokens',
    )
    assert.equal(
      tokens.excluded,
      sum(exclusions, (exclusion) => exclusion.tokens),
      'excluded tokens',
    )
    assert.equal(summary.turns, turns.length, 'turns')
    assert.equal(summary.calls, calls.size, 'calls')
    assert.equal(summary.rows, samples.length, 'rows')
    assert.equal(
      summary.rowTokens,
      sum(samples, ({ ids }) => ids.length),
      'tokens of rows',
    )
    const trainedCalls = sum(samples, (sample) => sample.calls.filter(({ isTrained }) => isTrained).length)
    assert.equal(summary.trainedCalls, trainedCalls, 'trained calls')
    assert.equal(summary.mergeRatio, samples.length === 0 ? 0 : trainedCalls / samples.length, 'merge ratio')
    assert.equal(
      sum(Object.values(summary.labels), (count) => count),
      calls.size,
      'labels',
    )
    assert.equal(
      summary.edges.all - summary.edges.exact,
      sum(Object.values(summary.forks), (count) => count),
      'forks',
    )
    if (samples.length === 0) return
    const weight = sum(samples, (sample) => sample.weight)
    assert(Math.abs(weight - 1) < 1e-9, `the weights of the rows add up to ${weight}`)
    assert(
      samples.every((sample) => sample.weight > 0),
      'a row without weight',
    )
  }),

  /** Spans cover every token without gaps and name the call and the weights that sampled it. */
  spans: eachKind(({ samples }, evidence) => {
    for (const sample of samples) {
      const spans = sample.spans()
      assert.equal(spans[0]?.from, 0, `the spans of ${sample.id} begin late`)
      for (const [i, span] of spans.entries()) {
        const to = spans[i + 1]?.from ?? sample.ids.length
        assert(to > span.from, `span ${i} of ${sample.id} is empty`)
        if (span.provenance === 'sampled') checkSampledSpan(sample, span, to, evidence)
        else assert.equal(span.call, undefined, `span ${i} of ${sample.id} is not sampled but has a call`)
      }
      for (const { key, from, to } of sample.calls) {
        for (let at = from; at < to; at++) {
          const span = spans.findLast((candidate) => candidate.from <= at)
          assert.equal(span?.call, key, `token ${at} of ${sample.id} is said to be of another call`)
        }
      }
    }
  }),

  /** Chains continue over exact edges only, and wherever possible. */
  merging(evidence) {
    const { samples } = evidence.of('prefix_merging')
    for (const sample of samples) {
      for (const [i, { key }] of sample.calls.entries()) {
        const before = sample.calls[i - 1]
        const isExact = before === undefined || goesOnFrom(evidence.call(key), evidence.call(before.key))
        assert(isExact, `${key} does not go on literally from ${before?.key}`)
      }
    }
    for (const sample of samples) {
      const last = sample.calls.at(-1)
      const end = evidence.call(last?.key ?? '')
      for (const other of samples) {
        const head = evidence.call(other.calls[0]?.key ?? '')
        if (!uniqueAncestors(head, evidence).has(end)) continue
        const isTaken = samples.some((third) => passesThrough(third, end))
        assert(isTaken, `${head.key} could have gone on from ${end.key}, but begins a row of its own`)
      }
    }
  },

  /** An edge is exact if a prompt begins with all tokens of an earlier call; its parent is the longest such call. */
  edges: eachKind(({ built }, { calls }) => {
    const all = [...calls.values()]
    assert.deepEqual(
      built.graph.nodes.map(({ key }) => key).toSorted(),
      [...calls.keys()].toSorted(),
      'the calls of the graph',
    )
    const children = new Map<string, string[]>(all.map(({ key }) => [key, []]))
    for (const node of built.graph.nodes) {
      const own = calls.get(node.key) ?? assert.fail(node.key)
      const before = all.filter((other) => goesOnFrom(own, other))
      const longest = Math.max(...before.map(lengthOf))
      const { edge } = node
      if (before.length === 0) {
        assert.notEqual(edge.verdict, 'exact', `${node.key} goes on from no call`)
      } else {
        assert.equal(edge.verdict, 'exact', `${node.key} goes on literally from an earlier call`)
      }
      if (edge.verdict === 'exact') {
        const parent = calls.get(edge.parent.key) ?? assert.fail(edge.parent.key)
        assert(before.includes(parent), `${node.key} does not begin with ${parent.key}`)
        assert.equal(lengthOf(parent), longest, `${node.key} has more of another call than of ${parent.key}`)
        const isDelivered = (candidate: RecordedCall): boolean => candidate.turn.delivery === 'delivered'
        const equals = before.filter((other) => lengthOf(other) === longest)
        assert(isDelivered(parent) || !equals.some(isDelivered), `${parent.key} never reached the harness`)
        children.get(parent.key)?.push(node.key)
      } else if (edge.verdict === 'forked') {
        const from = calls.get(edge.from.key) ?? assert.fail(edge.from.key)
        assert.equal(edge.commonTokens, commonLength(own.promptIds, whole(from)), `tokens ${node.key} shares`)
      }
    }
    for (const node of built.graph.nodes) {
      const named = node.children.map(({ key }) => key).toSorted()
      assert.deepEqual(named, children.get(node.key)?.toSorted(), `children of ${node.key}`)
    }
  }),

  /** A row shares the reported prefix with an earlier row; a tree reports the whole common prefix, up to its last answer. */
  shared: eachKind(({ kind, samples }) => {
    for (const [i, { id, ids, shared, calls }] of samples.entries()) {
      const earlier = samples.slice(0, i)
      const prompt = ids.subarray(0, calls.at(-1)?.from)
      const most = Math.max(0, ...earlier.map((other) => commonLength(prompt, other.ids)))
      assert.equal(shared?.length ?? 0, kind === 'prefix_tree' ? most : 0, `tokens that ${id} shares`)
      if (shared === undefined) continue
      const other = earlier.find((candidate) => candidate.id === shared.with)
      assert(other !== undefined, `${id} shares with ${shared.with}, which is not before it`)
      assert(commonLength(ids, other.ids) >= shared.length, `${id} does not share ${shared.length} tokens`)
    }
  }),

  /** All builders train the same calls. */
  agreement(evidence) {
    const [first, ...others] = KINDS.map((kind) => trainedKeys(evidence.of(kind)))
    for (const other of others) assert.deepEqual(other, first, 'the builders train different calls')
  },

  /** Exactly the calls that the filter accepts are trained. */
  filter: eachKind((made, evidence) => {
    const trained = new Set(trainedKeys(made))
    for (const { key, label } of made.built.graph.nodes) {
      const mayBe = isAllowed(evidence.call(key), label, evidence.trial.filter)
      assert.equal(trained.has(key), mayBe, `${key} ${mayBe ? 'is left out' : 'must not be trained'}`)
    }
  }),

  /** Messages are all messages of the sample's last request and the answer of that call. */
  messages: eachKind(({ samples }, evidence) => {
    for (const sample of samples) {
      const { prompt, response, answers, tools } = sample.messages()
      const calls = sample.calls.map(({ key, isTrained }) => ({ ...evidence.call(key), isTrained }))
      const [first] = calls
      assert(first !== undefined, `${sample.id} has no calls`)
      const expected = expectedMessages(calls)
      const messages = [...prompt, ...response]
      assert.deepEqual(
        messages,
        expected.map(({ message }) => message),
        `the messages of ${sample.id}`,
      )
      assertCallsBeforeResults(messages, sample.id)
      const places = calls.map(({ turn }) => expected.findIndex((e) => e.calls.some((call) => call.turn === turn)))
      assert.deepEqual(
        answers.map((at) => prompt.length + at),
        places,
        `where the answers of ${sample.id} are`,
      )
      assert.deepEqual(tools ?? undefined, requestOf(first).tools, `the tools of ${sample.id}`)
      // The response begins with the answer of the first call, even if the harness joined it to a message that it had begun.
      assert.equal(answers[0], 0, `the prompt of ${sample.id} does not end before its first answer`)
    }
  }),
} satisfies Record<string, (evidence: Evidence) => void>

export type Invariant = keyof typeof invariants

const DUPLICATE = 'duplicate-record'

function eachKind(check: (made: Made, evidence: Evidence) => void): (evidence: Evidence) => void {
  return (evidence) => {
    for (const kind of KINDS) check(evidence.of(kind), evidence)
  }
}

// --- trained tokens ---------------------------------------------------------------------------------------------------

/** Returns every token with mask 1 and its call according to the sample. */
function* trainedTokens(
  sample: Sample,
  evidence: Evidence,
): Generator<{ at: number; call: RecordedCall; offset: number }> {
  for (let at = 0; at < sample.mask.length; at++) {
    if (sample.mask[at] !== 1) continue
    const owner = sample.calls.find(({ from, to }) => from <= at && at < to)
    assert(owner !== undefined, `token ${at} of ${sample.id} is trained but of no call`)
    assert(owner.isTrained, `${owner.key} is trained in ${sample.id}, which says it is not`)
    yield { at, call: evidence.call(owner.key), offset: at - owner.from }
  }
}

function trainedKeys({ samples }: Made): string[] {
  return samples
    .flatMap(({ calls }) => calls.filter(({ isTrained }) => isTrained))
    .map(({ key }) => key)
    .toSorted()
}

function excludedCalls(exclusions: readonly Exclusion[]): Map<string, Exclusion> {
  const calls = exclusions.filter(({ choice }) => choice !== undefined)
  const byKey = new Map(calls.map((exclusion) => [`${exclusion.turnId}#${exclusion.choice}`, exclusion]))
  assert.equal(byKey.size, calls.length, 'a call is excluded twice')
  return byKey
}

function isAllowed({ turn, choice, promptIds, ids }: RecordedCall, label: string, filter: CallFilter): boolean {
  const { finishReasons, maxTokens } = filter
  return [
    turn.endedAt !== undefined && turn.failure === undefined,
    turn.delivery !== 'undelivered' || !filter.requireDelivery,
    (filter.grades as string[]).includes(turn.response?.grade ?? ''),
    (filter.labels as string[]).includes(label),
    promptIds.length > 0 && ids.length > 0 && ids.length >= filter.minSampledTokens,
    finishReasons === undefined || finishReasons.includes(choice.finishReason),
    maxTokens === undefined || promptIds.length + ids.length <= maxTokens,
    !filter.requireLogprobs || !choice.logprobs.some(Number.isNaN),
    filter.parserFailures === 'keep' || !hasParserFailure(choice),
    (turn.steeredBy ?? []).every((steering) => filter.allowSteered.includes(steering)),
    // A mask that the request does not explain is trained only where every kind of steering is.
    turn.response?.logprobMode !== 'grammar' || turn.steeredBy !== undefined || filter.allowSteered.length === 4,
  ].every(Boolean)
}

/** Whether the tool call is not JSON, or was truncated and remains in the text. */
function hasParserFailure({ message }: Choice): boolean {
  if (message.toolCalls.length > 0) return message.toolCalls.some(({ arguments: text }) => !isJson(text))
  return message.content.some((part) => part.type === 'text' && /^[ \t]*<tool_call>/m.test(part.text))
}

function checkSampledSpan(sample: Sample, span: Span, to: number, evidence: Evidence): void {
  const { choice, promptIds, ids, turn, key } = evidence.call(span.call ?? '')
  const from = promptIds.length
  assert(
    span.from >= from && to <= from + ids.length && startsWith(sample.ids, promptIds),
    `a span of ${sample.id} is not where ${key} sampled`,
  )
  for (let at = span.from; at < to; at++) {
    assert.equal(sample.ids[at], ids[at - from], `token ${at} of ${sample.id} is not of ${key}`)
    const spans = choice.weightSpans
    const known = spans?.findLast((s) => s.from <= at - from)
    const version = spans === undefined ? turn.response?.weightVersion : known?.version
    assert.equal(span.weightVersion, version, `the weights of token ${at} of ${sample.id}`)
    assert.equal(span.newestWeightVersion, known?.newest, `the newest possible weights of token ${at} of ${sample.id}`)
  }
}

// --- prefixes ---------------------------------------------------------------------------------------------------------

function whole({ promptIds, ids }: RecordedCall): Int32Array {
  const all = new Int32Array(promptIds.length + ids.length)
  all.set(promptIds)
  all.set(ids, promptIds.length)
  return all
}

function lengthOf({ promptIds, ids }: RecordedCall): number {
  return promptIds.length + ids.length
}

/** Whether the prompt of `call` begins with the prompt and the answer of `earlier`. */
function goesOnFrom(call: RecordedCall, earlier: RecordedCall): boolean {
  if (earlier.ids.length === 0 || earlier.promptIds.length === 0 || call === earlier) return false
  const { promptIds } = call
  return (
    promptIds.length >= lengthOf(earlier) &&
    startsWith(promptIds, earlier.promptIds) &&
    startsWith(promptIds.subarray(earlier.promptIds.length), earlier.ids)
  )
}

/**
 * Returns the ancestors of a call, each the longest possible. Stops where two calls have identical tokens: a chain continues
 * only one of them, and the records do not determine which.
 */
function uniqueAncestors(call: RecordedCall, { calls }: Evidence): Set<RecordedCall> {
  const ancestors = new Set<RecordedCall>()
  for (let tip: RecordedCall | undefined = call; tip !== undefined;) {
    const child: RecordedCall = tip
    const before: RecordedCall[] = [...calls.values()].filter((other) => goesOnFrom(child, other))
    const longest = Math.max(...before.map(lengthOf))
    const [parent, twin] = before.filter((other) => lengthOf(other) === longest)
    tip = twin === undefined ? parent : undefined
    if (tip !== undefined) ancestors.add(tip)
  }
  return ancestors
}

/** Whether a row contains the call and continues after it. */
function passesThrough({ calls }: Sample, { key }: RecordedCall): boolean {
  return calls.slice(0, -1).some((call) => call.key === key)
}

function startsWith(ids: Int32Array, first: Int32Array): boolean {
  return ids.length >= first.length && commonLength(ids, first) === first.length
}

function commonLength(a: Int32Array, b: Int32Array): number {
  let at = 0
  while (at < a.length && at < b.length && a[at] === b[at]) at += 1
  return at
}

function bitsOf(logprobs: Float32Array): Uint32Array {
  return new Uint32Array(logprobs.buffer, logprobs.byteOffset, logprobs.length)
}

// --- comparing --------------------------------------------------------------------------------------------------------

/** Returns all results of a session as plain data. */
function digest({ built, samples }: Made): unknown {
  return {
    samples: samples.map(({ spans, messages, logprobs, ...sample }) => ({
      ...sample,
      logprobs: bitsOf(logprobs),
      spans: spans(),
      messages: messages(),
    })),
    exclusions: built.exclusions,
    summary: built.summary,
    calls: built.graph.nodes.map(({ key, label, evidence, edge, children }) => ({
      key,
      label,
      evidence,
      edge: edge.verdict === 'exact' ? { ...edge, parent: edge.parent.key } : edgeDigest(edge),
      children: children.map((child) => child.key),
    })),
  }
}

function edgeDigest(edge: { verdict: string; from?: { key: string } }): unknown {
  return edge.from === undefined ? edge : { ...edge, from: edge.from.key }
}

function sum<T>(values: Iterable<T>, of: (value: T) => number): number {
  let total = 0
  for (const value of values) total += of(value)
  return total
}
