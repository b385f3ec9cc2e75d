import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { StrategySpec } from '../../model/task.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { SessionReader } from '../../store/store.ts'
import { buildSession, type BuildOptions, type BuiltSession } from '../../trajectory/build-session.ts'
import type { Builder } from '../../trajectory/builders/builder.ts'
import { mainConversation, mainTranscript } from '../../trajectory/main-conversation.ts'
import { toCallFilter } from '../../trajectory/select-calls.ts'
import { writeResult } from '../session/session-result.ts'
import type { BuildFacts, BuildJob, LoadedSession, RecordHead, SessionBuilds } from './session-build.ts'

export interface BuildDeps extends Pick<BuildOptions, 'filter' | 'weighting'> {
  reader: SessionReader
  createBuilder(spec: StrategySpec): Promise<Builder>
  /** Returns the readers of a session's requests. */
  readersOf: NonNullable<BuildOptions['forSession']>
}

/** Creates builds that run in this process. */
export function createBuilds(deps: BuildDeps): SessionBuilds {
  return {
    async load(sessionId) {
      return new LoadedRecord(await deps.reader.load(sessionId, { salvage: true }), deps)
    },
    async [Symbol.asyncDispose]() {},
  }
}

class LoadedRecord implements LoadedSession {
  readonly #record: SessionRecord
  readonly #deps: BuildDeps
  readonly #readers: ReturnType<BuildDeps['readersOf']>
  #built: BuiltSession | undefined

  constructor(record: SessionRecord, deps: BuildDeps) {
    this.#record = record
    this.#deps = deps
    this.#readers = deps.readersOf(record)
  }

  get head(): RecordHead {
    const { turns, ...head } = this.#record
    return { ...head, turnCount: turns.length }
  }

  async build({ builder, training, toolPrefixes }: BuildJob): Promise<BuildFacts> {
    const { weighting } = this.#deps
    const filter = { ...this.#deps.filter, ...toCallFilter(training) }
    const options = { builder: await this.#deps.createBuilder(builder), filter, weighting, ...this.#readers }
    const built = buildSession(this.#record, options)
    this.#built = built
    const { turns } = this.#record
    const lastFailure = lastTurn(turns)?.failure
    return {
      summary: built.summary,
      answers: turns.filter(({ response }) => response !== undefined).length,
      lastFailure,
      isLogFull: turns.some(({ failure }) => failure?.code === 'request.over-storage'),
      hasCrashedGateway: turns.some(({ failure }) => failure?.code === 'request.crashed-gateway'),
      offered: this.#findOffered(built, toolPrefixes),
    }
  }

  #findOffered({ graph }: BuiltSession, prefixes: readonly string[]): boolean[] {
    const main = graph.nodes.filter(({ label }) => label === 'main')
    const left = new Set(main.length === 0 ? [] : prefixes)
    for (const { turn } of main) {
      if (left.size === 0) break
      const tools = this.#readers.reader.readRequest(turn)?.tools ?? []
      for (const prefix of left) if (tools.some(({ name }) => name.startsWith(prefix))) left.delete(prefix)
    }
    return prefixes.map((prefix) => !left.has(prefix))
  }

  async readConversation(): Promise<string> {
    return JSON.stringify(mainConversation(this.#assertBuilt().graph, this.#readers.reader))
  }

  async readTranscript(): Promise<string> {
    return JSON.stringify(mainTranscript(this.#assertBuilt().graph, this.#readers.reader))
  }

  async readLastRequest(): Promise<TurnRequest | undefined> {
    const turn = lastTurn(this.#record.turns)
    return turn === undefined ? undefined : this.#readers.reader.readRequest(turn)
  }

  async readRecord(): Promise<SessionRecord> {
    return this.#record
  }

  async writeResult(path: string, parts: { order: SessionOrder; outcome: SessionOutcome }): Promise<void> {
    await writeResult(path, { ...parts, built: this.#assertBuilt() })
  }

  #assertBuilt(): BuiltSession {
    if (this.#built === undefined) throw new Error('build() was not called')
    return this.#built
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#built = undefined
  }
}

/** Returns the turn that ended last: its result is the last that the agent saw. */
function lastTurn(turns: SessionRecord['turns']): SessionRecord['turns'][number] | undefined {
  return turns.toSorted((a, b) => (a.endedAt ?? 0) - (b.endedAt ?? 0)).at(-1)
}
