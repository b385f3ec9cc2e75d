import { RecentMap } from '../../lib/collections/recent-map.ts'
import { RolloutError, type Failure, type FailureCode } from '../../model/failure.ts'
import type { DefaultSampling, HiddenDefault } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import type { WireEvent } from '../wire-event.ts'
import {
  allowsExact,
  type Capabilities,
  type ProbeReport,
  type SendOptions,
  type Upstream,
  type UpstreamReply,
} from './upstream.ts'

export interface ReplicasOptions {
  /** Engines of one kind that serve the same model. The returned upstream owns and disposes them. */
  replicas: readonly [Upstream, ...Upstream[]]
  /** Monotonic milliseconds. */
  now: () => number
  /** Consecutive failures after which a replica receives no calls. */
  failuresToOpen?: number
  /** How long it receives none, until one call tests it. */
  cooldownMs?: number
  /** Interval of health checks; 0: none. */
  checkEveryMs?: number
}

const SESSIONS_KEPT = 100_000
const CHECK_TIMEOUT_MS = 5000

/**
 * Several engines as one upstream. A session stays with its replica, whose cache contains its prompts, while the replica is
 * healthy. A call that fails before its first event is retried on another replica; after the first event it is not,
 * because the second answer would differ. `forced.replica` is the URL of the replica that answered.
 */
export function createReplicas(options: ReplicasOptions): Upstream {
  const { failuresToOpen = 3, cooldownMs = 15_000, checkEveryMs = 10_000, now } = options
  const replicas = options.replicas.map((upstream) => new Replica(upstream, { failuresToOpen, cooldownMs, now }))
  const replicaOf = new RecentMap<Replica>(SESSIONS_KEPT)
  const stopped = new AbortController()
  const timer = checkEveryMs === 0 ? undefined : setInterval(() => checkAll(), checkEveryMs)
  timer?.unref()

  function checkAll(): void {
    for (const replica of replicas) void replica.check(stopped.signal)
  }

  /** Returns the usable replicas, the session's own first, then by load; all replicas when none is usable. */
  function inOrder(sessionKey: string | undefined): [Replica, ...Replica[]] {
    const usable = replicas.filter((replica) => replica.isUsable)
    const own = sessionKey === undefined ? undefined : replicaOf.get(sessionKey)
    const rank = (replica: Replica): number => (replica === own ? -1 : replica.load)
    const [first, ...others] = (usable.length > 0 ? usable : replicas).toSorted((a, b) => rank(a) - rank(b))
    return [first!, ...others]
  }

  function assign(replica: Replica, sessionKey: string | undefined): void {
    if (sessionKey === undefined) return
    const previous = replicaOf.get(sessionKey)
    if (previous === replica) return
    if (previous !== undefined) previous.sessions -= 1
    replica.sessions += 1
    replicaOf.set(sessionKey, replica)
  }

  async function send(request: TurnRequest, sendOptions: SendOptions): Promise<UpstreamReply> {
    const { sessionKey, weights } = sendOptions
    const [first, ...others] = inOrder(sessionKey)
    const forced: Record<string, unknown> = {}
    const started = await startOn([first, ...others], request, sendOptions, forced)
    assign(started.replica, sessionKey)
    let serving = started
    const moved = (next: StartedCall): void => {
      serving = next
      assign(next.replica, sessionKey)
    }
    return {
      forced,
      get dropped() {
        return serving.reply.dropped
      },
      get sampling() {
        return serving.reply.sampling
      },
      events: relay(started, request, sendOptions, forced, moved),
      arrived: weights && (() => serving.reply.arrived?.() ?? weights.position),
    }
  }

  /** Tries the candidates in order until one begins to answer. */
  async function startOn(
    candidates: readonly Replica[],
    request: TurnRequest,
    sendOptions: SendOptions,
    forced: Record<string, unknown>,
  ): Promise<StartedCall> {
    let last: unknown
    for (const [i, replica] of candidates.entries()) {
      const call = replica.begin()
      try {
        const reply = await replica.upstream.send(request, sendOptions)
        Object.assign(forced, reply.forced, { replica: replica.upstream.url })
        return { replica, call, reply, others: candidates.slice(i + 1) }
      } catch (error) {
        call.end(failureOf(error) ?? 'unknown')
        if (sendOptions.signal.aborted || !isRetryable(failureOf(error))) throw error
        last = error
      }
    }
    throw last
  }

  /** Relays events. If the first event is a failure, the call is retried on the next replica. */
  async function* relay(
    first: StartedCall,
    request: TurnRequest,
    sendOptions: SendOptions,
    forced: Record<string, unknown>,
    moved: (started: StartedCall) => void,
  ): AsyncGenerator<readonly WireEvent[]> {
    let started = first
    for (;;) {
      let failure: Failure | undefined
      let hasBegun = false
      let hasEnded = false
      try {
        for await (const batch of started.reply.events) {
          failure = batch.find((event) => event.type === 'answer-error')?.failure
          if (failure !== undefined && !hasBegun && batch.length === 1 && mayRetry(started, failure, sendOptions)) break
          hasBegun = true
          yield batch
        }
        hasEnded = true
      } finally {
        // A harness that closes the call shows nothing about the health of the engine.
        started.call.end(failure ?? (hasEnded ? 'ok' : 'unknown'))
      }
      if (failure === undefined || hasBegun) return
      try {
        started = await startOn(started.others, request, sendOptions, forced)
      } catch (error) {
        yield [{ type: 'answer-error', failure: failureOf(error) ?? failure }]
        return
      }
      moved(started)
    }
  }

  const any = (): Upstream => inOrder(undefined)[0].upstream

  return {
    kind: options.replicas[0].kind,
    url: options.replicas.map(({ url }) => url).join(','),
    get capabilities() {
      return options.replicas.map((upstream) => upstream.capabilities).reduce(intersect)
    },
    send,
    tokenise: (request, signal) => any().tokenise(request, signal),
    countTokens: (request, signal) => any().countTokens(request, signal),
    listModels: (signal) => any().listModels(signal),
    contextTokens: (model, signal) => any().contextTokens(model, signal),
    async probe(signal) {
      return mergeReports(await Promise.all(options.replicas.map((upstream) => upstream.probe(signal))))
    },
    async [Symbol.asyncDispose]() {
      clearInterval(timer)
      stopped.abort()
      await Promise.all(options.replicas.map((upstream) => upstream[Symbol.asyncDispose]()))
    },
  }

  function mayRetry(started: StartedCall, failure: Failure, { signal }: SendOptions): boolean {
    return started.others.length > 0 && !signal.aborted && isRetryable(failure)
  }
}

/** Returns the report of the replica with a blocking finding, or of the first, with the findings of all replicas. */
export function mergeReports(reports: readonly ProbeReport[]): ProbeReport {
  const worst = reports.find((report) => !allowsExact(report)) ?? reports[0]!
  if (reports.length === 1) return worst
  const findings = reports.flatMap((report) =>
    report.findings.map((finding) => ({ ...finding, evidence: `${report.url}: ${finding.evidence}` })),
  )
  return {
    ...worst,
    url: reports.map((report) => report.url).join(','),
    capabilities: reports.map((report) => report.capabilities).reduce(intersect),
    findings: dropRepeated(findings, reports.length),
  }
}

interface StartedCall {
  replica: Replica
  call: Call
  reply: UpstreamReply
  others: readonly Replica[]
}

interface Call {
  end(outcome: Outcome): void
}

type Outcome = Failure | 'ok' | 'unknown'

/** One engine and its health: a circuit breaker. */
class Replica {
  readonly upstream: Upstream
  readonly #options: { failuresToOpen: number; cooldownMs: number; now: () => number }
  #failures = 0
  #openUntil: number | undefined
  #hasTestCall = false
  #inFlight = 0
  /** Number of sessions that are assigned to this replica. */
  sessions = 0

  constructor(upstream: Upstream, options: { failuresToOpen: number; cooldownMs: number; now: () => number }) {
    this.upstream = upstream
    this.#options = options
  }

  get load(): number {
    return this.#inFlight + this.sessions / SESSIONS_KEPT
  }

  /** Whether the circuit is closed, or its cooldown is over and no test call is in flight. */
  get isUsable(): boolean {
    if (this.#openUntil === undefined) return true
    return this.#options.now() >= this.#openUntil && !this.#hasTestCall
  }

  begin(): Call {
    const isTestCall = this.#openUntil !== undefined
    if (isTestCall) this.#hasTestCall = true
    this.#inFlight += 1
    let ended = false
    return {
      end: (outcome) => {
        if (ended) return
        ended = true
        this.#inFlight -= 1
        if (isTestCall) this.#hasTestCall = false
        this.#record(outcome)
      },
    }
  }

  async check(signal: AbortSignal): Promise<void> {
    if (!this.isUsable) return
    const call = this.begin()
    try {
      await this.upstream.listModels(AbortSignal.any([signal, AbortSignal.timeout(CHECK_TIMEOUT_MS)]))
      call.end('ok')
    } catch (error) {
      call.end(failureOf(error) ?? 'unknown')
    }
  }

  #record(outcome: Outcome): void {
    if (outcome === 'ok') {
      this.#failures = 0
      this.#openUntil = undefined
      return
    }
    if (outcome === 'unknown' || !isUnhealthy(outcome)) return
    this.#failures += 1
    if (this.#failures < this.#options.failuresToOpen && this.#openUntil === undefined) return
    this.#openUntil = this.#options.now() + this.#options.cooldownMs
  }
}

/** Failures of the engine itself, not of the request and not caused by load. */
const UNHEALTHY: ReadonlySet<FailureCode> = new Set([
  'upstream.unreachable',
  'upstream.reset',
  'upstream.timeout',
  'upstream.failed',
  'upstream.bad-stream',
  'upstream.out-of-memory',
])
/** Failures that another replica may not have. */
const RETRYABLE: ReadonlySet<FailureCode> = new Set([...UNHEALTHY, 'upstream.overloaded', 'upstream.rate-limited'])

function isUnhealthy(failure: Failure): boolean {
  return UNHEALTHY.has(failure.code)
}

function isRetryable(failure: Failure | undefined): boolean {
  return failure !== undefined && RETRYABLE.has(failure.code)
}

function failureOf(error: unknown): Failure | undefined {
  return error instanceof RolloutError ? error.failure : undefined
}

/** Returns the capabilities that both replicas have. */
function intersect(one: Capabilities, other: Capabilities): Capabilities {
  const streams = ['none', 'lossy', 'complete'] as const
  const tokenIn = ['none', 'completions', 'chat'] as const
  const contexts = [one.contextTokens, other.contextTokens].filter((tokens) => tokens !== undefined)
  return {
    idsOut: one.idsOut && other.idsOut,
    idsInStreams: streams[Math.min(streams.indexOf(one.idsInStreams), streams.indexOf(other.idsInStreams))] ?? 'none',
    tokenIn: tokenIn[Math.min(tokenIn.indexOf(one.tokenIn), tokenIn.indexOf(other.tokenIn))] ?? 'none',
    render: [one.render, other.render].includes('none')
      ? 'none'
      : one.render === other.render
        ? one.render
        : 'tokenize',
    toolFormat: one.toolFormat === other.toolFormat ? one.toolFormat : undefined,
    weightVersion: one.weightVersion && other.weightVersion,
    logprobs: one.logprobs === other.logprobs ? one.logprobs : 'unknown',
    ...commonSampling(one.defaultSampling, other.defaultSampling),
    ...allHidden(one.hiddenDefaults, other.hiddenDefaults),
    contextTokens: contexts.length === 0 ? undefined : Math.min(...contexts),
  }
}

/** Returns the defaults that are equal on both replicas. */
function commonSampling(one: DefaultSampling = {}, other: DefaultSampling = {}): Pick<Capabilities, 'defaultSampling'> {
  const names = (Object.keys(one) as (keyof DefaultSampling)[]).filter((name) => one[name] === other[name])
  if (names.length === 0) return {}
  return { defaultSampling: Object.fromEntries(names.map((name) => [name, one[name]])) }
}

/** Returns the parameters that at least one replica sets to an unknown value. */
function allHidden(
  one: readonly HiddenDefault[] = [],
  other: readonly HiddenDefault[] = [],
): Pick<Capabilities, 'hiddenDefaults'> {
  const names = new Set([...one, ...other])
  return names.size === 0 ? {} : { hiddenDefaults: [...names] }
}

function dropRepeated<T extends { about: string; verdict: string; meaning: string; evidence: string }>(
  findings: readonly T[],
  count: number,
): T[] {
  const groups = Map.groupBy(findings, ({ about, verdict, meaning }) => `${about}/${verdict}/${meaning}`)
  const once = [...groups.values()].flatMap((group) => {
    if (count === 1 || group.length < count) return group
    const evidences = new Set(group.map(({ evidence }) => evidence.replace(/^\S+: /, '')))
    return evidences.size === 1 ? [{ ...group[0]!, evidence: `all ${count}: ${[...evidences][0]}` }] : group
  })
  const order = [...new Set(findings.map(({ about }) => about))]
  return once.toSorted((a, b) => order.indexOf(a.about) - order.indexOf(b.about))
}
