import * as fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { builderOf, trialOf, type OpenTrial } from '../../test/support/random-sessions/trial.ts'
import { toyWorld } from '../../test/support/random-sessions/world.ts'
import { Evidence, invariants, type Invariant, type Kind } from '../../test/support/trajectory-oracle.ts'
import type { Sample, Span } from '../model/sample.ts'
import type { SessionRecord } from '../model/session.ts'
import type { Turn } from '../model/turn.ts'
import { buildSession, type BuildOptions, type BuiltSession } from './build-session.ts'
import { chainParts, type Builder, type SamplePlan, type Row } from './builders/builder.ts'
import { builders } from './builders/index.ts'
import type { CallNode } from './graph/call-graph.ts'

/** A defective builder, and the property that it violates. */
interface Mutant {
  caughtBy: Invariant
  build(kind: Kind, session: SessionRecord, options: BuildOptions): BuiltSession
}

const mutants: Record<string, Mutant> = {
  // --- every sampled token in exactly one row, or listed as excluded
  'a call is trained twice': {
    caughtBy: 'once',
    build: withSamples((samples) => [...samples, ...samples.slice(0, 1)]),
  },
  'an excluded call is not listed': {
    caughtBy: 'once',
    build: after((built) => {
      const at = built.exclusions.findIndex(({ choice }) => choice !== undefined)
      return { exclusions: built.exclusions.filter((_, i) => i !== at) }
    }),
  },
  'a trained call is listed as excluded too': {
    caughtBy: 'once',
    build: after(({ exclusions }, [first]) => {
      const call = first?.calls.find(({ isTrained }) => isTrained)
      if (call === undefined) return {}
      const { turnId, choice, from, to } = call
      return { exclusions: [...exclusions, { turnId, choice, tokens: to - from, reason: 'label', detail: 'x' }] }
    }),
  },
  'the end-of-turn token of an answer is not trained': {
    caughtBy: 'once',
    build: withSamples((samples) =>
      samples.map((sample) => {
        const mask = sample.mask.slice()
        for (const { to } of sample.calls) mask[to - 1] = 0
        return { ...sample, mask }
      }),
    ),
  },
  'all choices but the first are lost': {
    caughtBy: 'once',
    build: before((turns) =>
      turns.map((turn) => withResponse(turn, (response) => ({ choices: response.choices.slice(0, 1) }))),
    ),
  },
  'each record of a turn counts as a turn': {
    caughtBy: 'once',
    build: before((turns) =>
      turns.map((turn, i) =>
        turns.slice(0, i).some(({ id }) => id === turn.id) ? { ...turn, id: `${turn.id}-${i}` } : turn,
      ),
    ),
  },

  // --- calls without tokens are listed as excluded
  'turns without an answer are not listed': {
    caughtBy: 'listed',
    build: after(({ exclusions }) => ({ exclusions: exclusions.filter(({ choice }) => choice !== undefined) })),
  },
  'duplicate records are not listed': {
    caughtBy: 'listed',
    build: before((turns) => [...new Map(turns.map((turn) => [turn.id, turn])).values()]),
  },

  // --- mask 1 on sampled tokens only, with their own log probabilities
  'the token behind an answer is trained': {
    caughtBy: 'sampled',
    build: withSamples((samples) =>
      samples.map((sample) => {
        const mask = sample.mask.slice()
        for (const { to } of sample.calls) if (to < mask.length) mask[to] = 1
        return { ...sample, mask }
      }),
    ),
  },
  'log probabilities are shifted by one': {
    caughtBy: 'sampled',
    build: withSamples((samples) =>
      samples.map((sample) => ({
        ...sample,
        logprobs: Float32Array.of(Number.NaN, ...sample.logprobs.subarray(0, -1)),
      })),
    ),
  },
  'log probabilities are rounded': {
    caughtBy: 'sampled',
    build: withSamples((samples) =>
      samples.map((sample) => ({ ...sample, logprobs: sample.logprobs.map((value) => Math.round(value * 1e4) / 1e4) })),
    ),
  },
  'answers are tokenised again from their text': {
    caughtBy: 'sampled',
    build: before((turns) =>
      turns.map((turn) =>
        withResponse(turn, ({ choices }) => ({
          choices: choices.map((choice) => {
            const ids = toyWorld.encode(toyWorld.decode(choice.ids))
            return { ...choice, ids, logprobs: new Float32Array(ids.length) }
          }),
        })),
      ),
    ),
  },

  // --- the context that the engine read
  'calls are spliced together as NVIDIA does': {
    caughtBy: 'context',
    build: withBuilder('prefix_merging', () => splicing),
  },
  'a chain continues after a changed history': {
    caughtBy: 'context',
    build: withBuilder('prefix_merging', () => ({ name: 'forks', mayMismatch: true, plan: planOverForks })),
  },
  'prompts are truncated on the left': {
    caughtBy: 'context',
    build: withSamples((samples) =>
      samples.map((sample) => ({
        ...sample,
        ids: sample.ids.subarray(1),
        mask: sample.mask.subarray(1),
        logprobs: sample.logprobs.subarray(1),
        calls: sample.calls.map((call) => ({ ...call, from: call.from - 1, to: call.to - 1 })),
      })),
    ),
  },

  // --- the order of records
  'rows are in the order of arrival': {
    caughtBy: 'order',
    build: (kind, session, options) => {
      const arrival = session.turns.map(({ id }) => id)
      const built = unchanged(kind, session, options)
      const samples = [...built.samples()].toSorted(
        (a, b) => arrival.indexOf(a.calls[0]?.turnId ?? '') - arrival.indexOf(b.calls[0]?.turnId ?? ''),
      )
      return { ...built, samples: () => samples }
    },
  },
  'the last record of a turn to arrive is used': {
    caughtBy: 'order',
    build: before((turns) => [...new Map(turns.map((turn) => [turn.id, turn])).values()]),
  },
  'exclusions are in the order of arrival': {
    caughtBy: 'order',
    build: (kind, session, options) => {
      const arrival = session.turns.map(({ id }) => id)
      const built = unchanged(kind, session, options)
      const exclusions = built.exclusions.toSorted((a, b) => arrival.indexOf(a.turnId) - arrival.indexOf(b.turnId))
      return { ...built, exclusions }
    },
  },

  // --- counts
  'every row weighs as much as a session': {
    caughtBy: 'counts',
    build: withSamples((samples) => samples.map((sample) => ({ ...sample, weight: 1 }))),
  },
  'only trained tokens count as sampled': {
    caughtBy: 'counts',
    build: after(({ summary }) => ({
      summary: { ...summary, tokens: { ...summary.tokens, sampled: summary.tokens.trained } },
    })),
  },
  'row tokens are counted from the prompts': {
    caughtBy: 'counts',
    build: after(({ summary }, samples) => ({
      summary: { ...summary, rowTokens: samples.reduce((sum, sample) => sum + sample.promptLength, 0) },
    })),
  },

  // --- provenance of tokens
  'spans begin one token late': {
    caughtBy: 'spans',
    build: withSpans((spans) => spans.map((span) => (span.from === 0 ? span : { ...span, from: span.from + 1 }))),
  },
  'a call has a single weight version': {
    caughtBy: 'spans',
    build: withSpans((spans) => spans.filter((span, i) => span.call === undefined || span.call !== spans[i - 1]?.call)),
  },
  'sampled tokens in a prompt are marked as context': {
    caughtBy: 'spans',
    build: withSpans((spans) => [{ from: 0, provenance: 'context' }, ...spans.slice(1).toReversed()]),
  },

  // --- merging
  'nothing is merged': {
    caughtBy: 'merging',
    build: withBuilder('prefix_merging', () => builderOf('per_request')),
  },
  'a chain ends where the harness branches': {
    caughtBy: 'merging',
    build: withBuilder('prefix_merging', (builder) => ({
      ...builder,
      plan: (graph, mayTrain) => splitRows(builder.plan(graph, mayTrain), ({ call }) => call.children.length > 1),
    })),
  },
  'all calls with the same first prompt are one chain': {
    caughtBy: 'merging',
    build: withBuilder('prefix_merging', () => splicing),
  },

  // --- edges
  'a call is linked to the parent of its parent': {
    caughtBy: 'edges',
    build: withEdges((edge) =>
      edge.verdict === 'exact' && edge.parent.edge.verdict === 'exact' ? edge.parent.edge : edge,
    ),
  },
  'a changed history is marked as exact': {
    caughtBy: 'edges',
    build: withEdges((edge) => (edge.verdict === 'forked' ? { verdict: 'exact', parent: edge.from } : edge)),
  },
  'an exact edge is marked as a new conversation': {
    caughtBy: 'edges',
    build: withEdges((edge) =>
      edge.verdict === 'exact' && edge.parent.choice.index > 0 ? { verdict: 'root', reason: 'new-conversation' } : edge,
    ),
  },
  'shared tokens of a fork are one too many': {
    caughtBy: 'edges',
    build: withEdges((edge) => (edge.verdict === 'forked' ? { ...edge, commonTokens: edge.commonTokens + 1 } : edge)),
  },

  // --- shared prefixes
  'a row claims to share one token too many': {
    caughtBy: 'shared',
    build: withSamples((samples) =>
      samples.map((sample) =>
        sample.shared === undefined
          ? sample
          : { ...sample, shared: { ...sample.shared, length: sample.shared.length + 1 } },
      ),
    ),
  },
  'a row shares a prefix with a later row': {
    caughtBy: 'shared',
    build: withSamples((samples) =>
      samples.map((sample) =>
        sample.shared === undefined
          ? sample
          : { ...sample, shared: { ...sample.shared, with: samples.at(-1)?.id ?? '' } },
      ),
    ),
  },
  'rows do not report shared prefixes': {
    caughtBy: 'shared',
    build: withSamples((samples) => samples.map(({ shared: _, ...sample }) => sample)),
  },

  // --- trained calls
  'the tree trains only its first branch': {
    caughtBy: 'agreement',
    build: withBuilder('prefix_tree', (builder) => ({
      ...builder,
      plan: (graph, mayTrain) => ({
        ...builder.plan(graph, mayTrain),
        rows: builder.plan(graph, mayTrain).rows.slice(0, 1),
      }),
    })),
  },
  'the rest of a chain is dropped, even if it is listed': {
    caughtBy: 'filter',
    build: withBuilder('prefix_merging', (builder) => ({
      ...builder,
      plan: (graph, mayTrain) => {
        const plan = builder.plan(graph, mayTrain)
        return { ...plan, rows: plan.rows.map((row) => ({ ...row, parts: row.parts.slice(0, 2) })) }
      },
    })),
  },
  'undelivered answers are trained': {
    caughtBy: 'filter',
    build: (kind, session, options) =>
      unchanged(kind, session, { ...options, filter: { ...options.filter, requireDelivery: false } }),
  },
  'failed calls are trained': {
    caughtBy: 'filter',
    build: before((turns) =>
      turns.map(({ failure, ...turn }) => (failure === undefined ? turn : { ...turn, delivery: 'delivered' })),
    ),
  },
  'doubtful ids are trained': {
    caughtBy: 'filter',
    build: before((turns) => turns.map((turn) => withResponse(turn, () => ({ grade: 'exact' })))),
  },

  // --- messages
  'answers are the messages that the harness sent back': {
    caughtBy: 'messages',
    build: (kind, session, options) => {
      const sentIn = (turnId: string | undefined): unknown[] => {
        const turn = session.turns.find(({ id }) => id === turnId)
        return turn === undefined ? [] : (JSON.parse(turn.request) as { messages: unknown[] }).messages
      }
      const built = unchanged(kind, session, options)
      const samples = [...built.samples()].map((sample): Sample => {
        const messages = sample.messages()
        const sent = sentIn(sample.calls.at(-1)?.turnId).slice(messages.prompt.length)
        return { ...sample, messages: () => ({ ...messages, response: [...sent, messages.response.at(-1)] }) }
      })
      return { ...built, samples: () => samples }
    },
  },
  'assistant messages of calls outside the row are omitted': {
    caughtBy: 'messages',
    build: withSamples((samples) =>
      samples.map((sample) => {
        const { prompt, response, answers, tools } = sample.messages()
        const isKept = (message: unknown, at: number): boolean =>
          (message as { role: string }).role !== 'assistant' || answers.includes(at)
        const kept = response.flatMap((_, at) => (isKept(response[at], at) ? [at] : []))
        const messages = {
          prompt,
          response: kept.map((at) => response[at]),
          answers: answers.map((at) => kept.indexOf(at)),
          tools,
        }
        return { ...sample, messages: () => messages }
      }),
    ),
  },
  'only the last answer of a chain is a message': {
    caughtBy: 'messages',
    build: withSamples((samples) =>
      samples.map((sample) => {
        const messages = sample.messages()
        return { ...sample, messages: () => ({ ...messages, response: messages.response.slice(-1) }) }
      }),
    ),
  },
}

describe('each mutant of a builder violates a property', () => {
  test.each(Object.entries(mutants))('%s', (_, { caughtBy, build }) => {
    const outcome = fc.check(
      fc.property(trialOf(toyWorld, 14), (trial) => {
        const evidence = new Evidence({
          ...trial,
          build: (kind, session) => build(kind, session, optionsOf(trial, kind)),
        })
        invariants[caughtBy](evidence)
      }),
      { numRuns: 2000, endOnFailure: true },
    )
    expect(outcome.failed).toBe(true)
    // The check fails, not the mutant itself.
    expect(outcome.errorInstance).toMatchObject({ code: 'ERR_ASSERTION' })
  })

  test('every property has a mutant', () => {
    const caught = new Set<string>(Object.values(mutants).map(({ caughtBy }) => caughtBy))
    expect([...caught].toSorted()).toEqual(Object.keys(invariants).toSorted())
  })
})

describe('buildSession() rejects the plan of a builder that', () => {
  const refused = (plan: (plan: SamplePlan, trial: OpenTrial) => SamplePlan, mayMismatch = false): RegExp | string => {
    const builder = builderOf('prefix_merging')
    for (const trial of fc.sample(trialOf(toyWorld, 14), { numRuns: 200 })) {
      const options = optionsOf(trial, 'prefix_merging')
      const broken: Builder = {
        name: 'mine',
        mayMismatch,
        plan: (graph, mayTrain) => plan(builder.plan(graph, mayTrain), trial),
      }
      try {
        for (const _ of buildSession(trial.session, { ...options, builder: broken }).samples());
      } catch (error) {
        return (error as Error).message
      }
    }
    return 'nothing'
  }

  test('trains a call twice', () => {
    expect(refused((plan) => ({ ...plan, rows: [...plan.rows, ...plan.rows] }))).toMatch(/^Builder mine.*trained twice/)
  })

  test('trains tokens between the answers', () => {
    const all = (row: Row): Row => ({ ...row, parts: row.parts.map((part) => ({ ...part, isTrained: true })) })
    expect(refused((plan) => ({ ...plan, rows: plan.rows.map(all) }))).toMatch(/must not be trained/)
  })

  test('trains a call that the filter excludes', () => {
    const builder: Builder = {
      name: 'mine',
      plan: (graph) => ({
        rows: graph.nodes.map((node) => ({ promptParts: 1, parts: chainParts([node], () => true) })),
        leftOut: new Map(),
      }),
    }
    const isRefused = fc.sample(trialOf(toyWorld, 14), { numRuns: 200 }).some((trial) => {
      try {
        buildSession(trial.session, { ...optionsOf(trial, 'per_request'), builder })
        return false
      } catch (error) {
        return /must not be trained/.test((error as Error).message)
      }
    })
    expect(isRefused).toBe(true)
  })

  test('creates a row without a trained token', () => {
    const none = (row: Row): Row => ({ ...row, parts: row.parts.map((part) => ({ ...part, isTrained: false })) })
    expect(refused((plan) => ({ ...plan, rows: plan.rows.map(none) }))).toMatch(/has no trained token/)
  })

  test('adds a call to a context that it did not have', () => {
    const shorter = (row: Row): Row => ({
      ...row,
      parts: row.parts.map((part) => (part.isSampled ? part : { ...part, ids: part.ids.subarray(1) })),
    })
    expect(refused((plan) => ({ ...plan, rows: plan.rows.map(shorter) }))).toMatch(/do not have the context/)
  })
})

// --- defects ----------------------------------------------------------------------------------------------------------

function optionsOf({ filter, weighting, reader }: OpenTrial, kind: Kind): BuildOptions {
  return { builder: builderOf(kind), filter, weighting, reader }
}

function unchanged(_: Kind, session: SessionRecord, options: BuildOptions): BuiltSession {
  return buildSession(session, options)
}

/** Builds from changed records. */
function before(change: (turns: Turn[]) => Turn[]): Mutant['build'] {
  return (kind, session, options) => unchanged(kind, { ...session, turns: change(session.turns) }, options)
}

/** Changes the built session. */
function after(change: (built: BuiltSession, samples: Sample[]) => Partial<BuiltSession>): Mutant['build'] {
  return (kind, session, options) => {
    const built = unchanged(kind, session, options)
    return { ...built, ...change(built, [...built.samples()]) }
  }
}

function withSamples(change: (samples: Sample[]) => Sample[]): Mutant['build'] {
  return after((_, samples) => ({ samples: () => change(samples) }))
}

function withSpans(change: (spans: readonly Span[]) => Span[]): Mutant['build'] {
  return withSamples((samples) => samples.map((sample) => ({ ...sample, spans: () => change(sample.spans()) })))
}

function withEdges(change: (edge: CallNode['edge']) => CallNode['edge']): Mutant['build'] {
  return after(({ graph }) => ({
    graph: { ...graph, nodes: graph.nodes.map((node) => ({ ...node, key: node.key, edge: change(node.edge) })) },
  }))
}

function withBuilder(instead: Kind, change: (builder: Builder) => Builder): Mutant['build'] {
  return (kind, session, options) =>
    unchanged(kind, session, kind === instead ? { ...options, builder: change(options.builder) } : options)
}

function withResponse(
  turn: Turn,
  change: (response: NonNullable<Turn['response']>) => Partial<NonNullable<Turn['response']>>,
): Turn {
  const { response } = turn
  return response === undefined ? turn : { ...turn, response: { ...response, ...change(response) } }
}

const splicing = builders.create(builders.config.parse({ kind: 'prefix_merging', splice: true, endOfTurnId: 0 }), {})

/** Appends a call to the call that it forked from, although the history was changed. */
function planOverForks(graph: Parameters<Builder['plan']>[0], mayTrain: Parameters<Builder['plan']>[1]): SamplePlan {
  const rows = graph.nodes.filter(mayTrain).map((node): Row => {
    const { edge } = node
    if (edge.verdict !== 'forked') return { promptParts: 1, parts: chainParts([node], () => true) }
    const earlier = chainParts([edge.from], () => false)
    const behind = node.response.promptIds.subarray(edge.commonTokens)
    return {
      promptParts: 1,
      parts: [
        ...earlier,
        { ids: behind, call: node, isSampled: false, isTrained: false },
        { ids: node.choice.ids, call: node, isSampled: true, isTrained: true },
      ],
    }
  })
  return { rows, leftOut: new Map() }
}

/** Starts a new row after every part for which `isEnd` returns true. */
function splitRows(plan: SamplePlan, isEnd: (part: Row['parts'][number]) => boolean): SamplePlan {
  const rows = plan.rows.flatMap((row) => {
    const chains: CallNode[][] = [[]]
    for (const part of row.parts.filter(({ isSampled }) => isSampled)) {
      chains.at(-1)?.push(part.call)
      if (isEnd(part)) chains.push([])
    }
    const trained = new Set(row.parts.filter(({ isTrained }) => isTrained).map(({ call }) => call))
    return chains
      .filter((chain) => chain.some((call) => trained.has(call)))
      .map((chain) => ({ promptParts: 1, parts: chainParts(chain, (call) => trained.has(call)) }))
  })
  return { ...plan, rows }
}
