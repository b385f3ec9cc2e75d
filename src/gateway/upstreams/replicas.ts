import { RecentMap } from '../../lib/collections/recent-map.ts'
import { RolloutError, type Failure, type FailureCode } from '../../model/failure.ts'
import type { StreamEvent } from '../../model/stream-event.ts'
import type { DefaultSampling } from '../../model/turn-sampling.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { allowsExact, type Capabilities, type SendOptions, type Upstream, type UpstreamReply } from './upstream.ts'

export interface ReplicasOptions {
  /** Engines of one kind that serve the same model. They belong to this from now on. */
  replicas: readonly [Upstream, ...Upstream[]]
  /** Monotonic milliseconds. */
  now: () => number
  /** Failures in a row after which a replica gets no calls. */
  failuresToOpen?: number
  /** How long it gets none, until one call may try it again. */
  cooldownMs?: number
  /** How often each is asked whether it is there; 0: never. */
  checkEveryMs?: number
}

const SESSIONS_KEPT = 100_000
const CHECK_TIMEOUT_MS = 5000

/**
 * Several engines as one. A session stays with its replica, whose cache has its prompts, as long as that one works. What
 * fails before the harness has heard anything is tried on another; after the first event it is not, because a second
 * answer would be another one. `forced.replica` says which served.
 */
export function createReplicas(options: ReplicasOptions): Upstream {
  const { failuresToOpen = 3, cooldownMs = 15_000, checkEveryMs = 10_000, now } = options
  const replicas = options.replicas.map((upstream) => new Replica(upstream, { failuresToOpen, cooldownMs, now }))
  const homes = new RecentMap<Replica>(SESSIONS_KEPT)
  const stopped = new AbortController()
  const timer = checkEveryMs === 0 ? undefined : setInterval(() => checkAll(), checkEveryMs)
  timer?.unref()

  function checkAll(): void {
    for (const replica of replicas) void replica.check(stopped.signal)
  }

  /** Usable ones, the session's own first, then those with least to do; all of them when none is usable. */
  function inOrder(sessionKey: string | undefined): [Replica, ...Replica[]] {
    const usable = replicas.filter((replica) => replica.isUsable)
    const home = sessionKey === undefined ? undefined : homes.get(sessionKey)
    const rank = (replica: Replica): number => (replica === home ? -1 : replica.load)
    const [first, ...others] = (usable.length > 0 ? usable : replicas).toSorted((a, b) => rank(a) - rank(b))
    return [first!, ...others]
  }

  function settle(replica: Replica, sessionKey: string | undefined): void {
    if (sessionKey === undefined) return
    const previous = homes.get(sessionKey)
    if (previous === replica) return
    if (previous !== undefined) previous.sessions -= 1
    replica.sessions += 1
    homes.set(sessionKey, replica)
  }

  async function send(request: TurnRequest, sendOptions: SendOptions): Promise<UpstreamReply> {
    const { signal, sessionKey } = sendOptions
    const [first, ...others] = inOrder(sessionKey)
    const forced: Record<string, unknown> = {}
    const trial = await startOn([first, ...others], request, sendOptions, forced)
    settle(trial.replica, sessionKey)
    let serving = trial
    const moved = (next: Trial): void => {
      serving = next
      settle(next.replica, sessionKey)
    }
    return {
      forced,
      get dropped() {
        return serving.reply.dropped
      },
      get sampling() {
        return serving.reply.sampling
      },
      events: relay(trial, request, { ...sendOptions, signal }, forced, moved),
      ...(sendOptions.weights === undefined ? {} : { arrived: () => arrivedAt(serving, sendOptions.weights) }),
    }
  }

  /** The first of them that begins to answer. */
  async function startOn(
    candidates: readonly Replica[],
    request: TurnRequest,
    sendOptions: SendOptions,
    forced: Record<string, unknown>,
  ): Promise<Trial> {
    let last: unknown
    for (const [i, replica] of candidates.entries()) {
      const call = replica.begin()
      try {
        const reply = await replica.upstream.send(request, sendOptions)
        Object.assign(forced, reply.forced, { replica: replica.upstream.url })
        return { replica, call, reply, others: candidates.slice(i + 1) }
      } catch (error) {
        call.end(failureOf(error) ?? 'unknown')
        if (sendOptions.signal.aborted || !isWorthRetrying(failureOf(error))) throw error
        last = error
      }
    }
    throw last
  }

  /** Passes events on. A failure that is the first of them is tried elsewhere. */
  async function* relay(
    first: Trial,
    request: TurnRequest,
    sendOptions: SendOptions,
    forced: Record<string, unknown>,
    moved: (trial: Trial) => void,
  ): AsyncGenerator<readonly StreamEvent[]> {
    let trial = first
    for (;;) {
      let failure: Failure | undefined
      let hasBegun = false
      let hasEnded = false
      try {
        for await (const batch of trial.reply.events) {
          failure = batch.find((event) => event.type === 'answer-error')?.failure
          if (failure !== undefined && !hasBegun && batch.length === 1 && mayRetry(trial, failure, sendOptions)) break
          hasBegun = true
          yield batch
        }
        hasEnded = true
      } finally {
        // A harness that leaves half way says nothing about the engine.
        trial.call.end(failure ?? (hasEnded ? 'ok' : 'unknown'))
      }
      if (failure === undefined || hasBegun) return
      try {
        trial = await startOn(trial.others, request, sendOptions, forced)
      } catch (error) {
        yield [{ type: 'answer-error', failure: failureOf(error) ?? failure }]
        return
      }
      moved(trial)
    }
  }

  const any = (): Upstream => inOrder(undefined)[0].upstream

  return {
    kind: options.replicas[0].kind,
    url: options.replicas.map(({ url }) => url).join(','),
    get capabilities() {
      return options.replicas.map((upstream) => upstream.capabilities).reduce(weaker)
    },
    send,
    tokenise: (request, signal) => any().tokenise(request, signal),
    countTokens: (request, signal) => any().countTokens(request, signal),
    listModels: (signal) => any().listModels(signal),
    contextTokens: (model, signal) => any().contextTokens(model, signal),
    async probe(signal) {
      const reports = await Promise.all(options.replicas.map((upstream) => upstream.probe(signal)))
      // The one that can least is what the user has to know of; the others are named where they differ.
      const worst = reports.find((report) => !allowsExact(report)) ?? reports[0]!
      const findings = reports.flatMap((report) =>
        report.findings.map((finding) =>
          reports.length === 1 ? finding : { ...finding, evidence: `${report.url}: ${finding.evidence}` },
        ),
      )
      return {
        ...worst,
        url: reports.map((report) => report.url).join(','),
        capabilities: reports.map((report) => report.capabilities).reduce(weaker),
        findings: dropRepeated(findings, reports.length),
      }
    },
    async [Symbol.asyncDispose]() {
      clearInterval(timer)
      stopped.abort()
      await Promise.all(options.replicas.map((upstream) => upstream[Symbol.asyncDispose]()))
    },
  }

  function mayRetry(trial: Trial, failure: Failure, { signal }: SendOptions): boolean {
    return trial.others.length > 0 && !signal.aborted && isWorthRetrying(failure)
  }
}

interface Trial {
  replica: Replica
  call: Call
  reply: UpstreamReply
  /** Not tried yet. */
  others: readonly Replica[]
}

function arrivedAt({ reply }: Trial, weights: { readonly position: number } | undefined): number {
  return reply.arrived?.() ?? weights?.position ?? 0
}

interface Call {
  end(outcome: Outcome): void
}

type Outcome = Failure | 'ok' | 'unknown'

/** One engine and how it has been doing. */
class Replica {
  readonly upstream: Upstream
  readonly #options: { failuresToOpen: number; cooldownMs: number; now: () => number }
  #failures = 0
  #openUntil: number | undefined
  #hasTrial = false
  #inFlight = 0
  /** That are at home here. */
  sessions = 0

  constructor(upstream: Upstream, options: { failuresToOpen: number; cooldownMs: number; now: () => number }) {
    this.upstream = upstream
    this.#options = options
  }

  get load(): number {
    return this.#inFlight + this.sessions / SESSIONS_KEPT
  }

  /** Closed, or open for so long that one call may find out whether it is back. */
  get isUsable(): boolean {
    if (this.#openUntil === undefined) return true
    return this.#options.now() >= this.#openUntil && !this.#hasTrial
  }

  begin(): Call {
    const isTrial = this.#openUntil !== undefined
    if (isTrial) this.#hasTrial = true
    this.#inFlight += 1
    let ended = false
    return {
      end: (outcome) => {
        if (ended) return
        ended = true
        this.#inFlight -= 1
        if (isTrial) this.#hasTrial = false
        this.#note(outcome)
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

  #note(outcome: Outcome): void {
    if (outcome === 'ok') {
      this.#failures = 0
      this.#openUntil = undefined
      return
    }
    if (outcome === 'unknown' || !isSick(outcome)) return
    this.#failures += 1
    if (this.#failures < this.#options.failuresToOpen && this.#openUntil === undefined) return
    this.#openUntil = this.#options.now() + this.#options.cooldownMs
  }
}

/** Failures that say something about the engine's health, not about the request or about being busy. */
const SICK: ReadonlySet<FailureCode> = new Set([
  'upstream.unreachable',
  'upstream.reset',
  'upstream.timeout',
  'upstream.failed',
  'upstream.bad-stream',
  'upstream.out-of-memory',
])
/** Another replica may have room, or may not have been touched by what ails this one. */
const ELSEWHERE: ReadonlySet<FailureCode> = new Set([...SICK, 'upstream.overloaded', 'upstream.rate-limited'])

function isSick(failure: Failure): boolean {
  return SICK.has(failure.code)
}

function isWorthRetrying(failure: Failure | undefined): boolean {
  return failure !== undefined && ELSEWHERE.has(failure.code)
}

function failureOf(error: unknown): Failure | undefined {
  return error instanceof RolloutError ? error.failure : undefined
}

/** What holds on both. */
function weaker(one: Capabilities, other: Capabilities): Capabilities {
  const streams = ['none', 'lossy', 'complete'] as const
  const contexts = [one.contextTokens, other.contextTokens].filter((tokens) => tokens !== undefined)
  return {
    idsOut: one.idsOut && other.idsOut,
    idsInStreams: streams[Math.min(streams.indexOf(one.idsInStreams), streams.indexOf(other.idsInStreams))] ?? 'none',
    tokenInChat: one.tokenInChat && other.tokenInChat,
    render: one.render && other.render,
    tokenise: one.tokenise && other.tokenise,
    weightVersion: one.weightVersion && other.weightVersion,
    logprobs: one.logprobs === other.logprobs ? one.logprobs : 'unknown',
    ...commonSampling(one.defaultSampling, other.defaultSampling),
    ...(contexts.length === 0 ? {} : { contextTokens: Math.min(...contexts) }),
  }
}

/** Defaults that both report; where they differ, nothing is known of all replicas. */
function commonSampling(one: DefaultSampling = {}, other: DefaultSampling = {}): Pick<Capabilities, 'defaultSampling'> {
  const names = (Object.keys(one) as (keyof DefaultSampling)[]).filter((name) => one[name] === other[name])
  if (names.length === 0) return {}
  return { defaultSampling: Object.fromEntries(names.map((name) => [name, one[name]])) }
}

/** What all replicas say alike is said once. */
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
