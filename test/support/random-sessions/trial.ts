import * as fc from 'fast-check'
import { requestReader } from '../../../src/compose/read-request.ts'
import { Steering, type Turn } from '../../../src/model/turn.ts'
import { buildSession, type Weighting } from '../../../src/trajectory/build-session.ts'
import { builders } from '../../../src/trajectory/builders/index.ts'
import type { Builder } from '../../../src/trajectory/builders/builder.ts'
import type { RequestReader } from '../../../src/trajectory/graph/call-graph.ts'
import { CallFilter } from '../../../src/trajectory/select-calls.ts'
import type { Kind, Trial } from '../trajectory-oracle.ts'
import { sessionScript, type SessionScript } from './script.ts'
import { simulate } from './simulate.ts'
import type { World } from './world.ts'

/** A trial whose builders can be replaced. */
export interface OpenTrial extends Trial {
  script: SessionScript
  weighting: Weighting
  reader: RequestReader
}

const ALL_LABELS: CallFilter['labels'] = ['main', 'subagent', 'compaction', 'side-call', 'retry', 'abandoned']

const filter: fc.Arbitrary<CallFilter> = fc.oneof(
  { arbitrary: fc.constant(CallFilter.parse({})), weight: 2 },
  { arbitrary: fc.constant(CallFilter.parse({ labels: ALL_LABELS })), weight: 2 },
  {
    arbitrary: fc
      .record({
        labels: fc.subarray(ALL_LABELS, { minLength: 1 }),
        grades: fc.subarray<CallFilter['grades'][number]>(['exact', 'inferred', 'text-only']),
        finishReasons: fc.constantFrom(undefined, ['stop', 'tool-calls']),
        maxTokens: fc.option(fc.integer({ min: 1, max: 60 }), { nil: undefined, freq: 2 }),
        minSampledTokens: fc.nat({ max: 3 }),
        parserFailures: fc.constantFrom('keep', 'exclude'),
        allowSteered: fc.constantFrom<Steering[]>([], ['tool-choice'], [...Steering.options]),
        requireLogprobs: fc.boolean(),
        requireDelivery: fc.boolean(),
      })
      .map((fields) => CallFilter.parse(fields)),
    weight: 2,
  },
)

const weighting = fc.constantFrom<Weighting>('tokens', 'equal')

/** Draws random sessions of a world with random build options. */
export function trialOf(world: World, maxOps: number): fc.Arbitrary<OpenTrial> {
  return fc.record({ script: sessionScript(maxOps), filter, weighting }).map(({ script, ...options }) => {
    const reader = rememberingReader()
    return {
      script,
      ...simulate(script, world),
      ...options,
      reader,
      build: (kind, session) => buildSession(session, { builder: builderOf(kind), reader, ...options }),
      [fc.toStringMethod]: () => fc.stringify({ script, ...options }),
    }
  })
}

export function builderOf(kind: Kind): Builder {
  return builders.create(builders.config.parse({ kind }), {})
}

/** Caches parsed requests, because every build of a session parses the same requests. */
function rememberingReader(): RequestReader {
  return {
    readRequest: remember((turn) => requestReader.readRequest(turn)),
    readPrompt: remember((turn) => requestReader.readPrompt(turn)),
  }
}

function remember<T>(read: (turn: Turn) => T): (turn: Turn) => T {
  const known = new Map<string, T>()
  return (turn) => {
    const key = turn.request
    if (!known.has(key)) known.set(key, read(turn))
    return known.get(key) as T
  }
}
