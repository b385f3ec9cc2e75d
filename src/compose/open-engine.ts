import { readFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import type { Engine } from '@polar-rl/tiny-engine'
import { orInvalid } from '../config/or-invalid.ts'
import { createUpstream, detectKind, type UpstreamConfig, type UpstreamKind } from '../gateway/upstreams/index.ts'
import { loadUpstream, type UpstreamPlug } from '../gateway/upstreams/load-upstream.ts'
import { createReplicas, mergeReports } from '../gateway/upstreams/replicas.ts'
import {
  allowsExact,
  continuationOf,
  type Capabilities,
  type ProbeReport,
  type Upstream,
} from '../gateway/upstreams/upstream.ts'
import { RolloutError } from '../model/failure.ts'
import { reachEngines } from './reach-engines.ts'
import { startTinyEngine } from './tiny-engine.ts'

/** Context size, in tokens, that harnesses are configured with when neither the user nor the engine states one. */
export const USUAL_CONTEXT = 131_072

export interface EngineChoice {
  /** URL of a running engine, or URLs of its replicas separated by commas. Absent: the tiny engine is started. */
  url?: string
  /** A kind of `upstreams`, or `auto`. Absent: `auto`, which detects the kind. */
  kind?: string
  /** Path of a module that exports `upstream`; replaces `kind`. */
  module?: string
  /** Absent: the first model that the engine serves. */
  model?: string
  /** API key of the engine. */
  key?: string
  /** YAML file of turns that the tiny engine replays. Absent: its model answers. */
  script?: string
  /** File that the tiny engine appends a JSON line to for each generation. */
  log?: string
  /** How long to wait for an engine that does not listen yet, loads its model or is busy. Absent: no wait. */
  waitMs?: number
  /** When it aborts, opening stops and its reason is thrown. */
  signal?: AbortSignal
  /** Receives a sentence about what the opening waits for. */
  onWait?: (sentence: string) => void
}

export interface OpenEngine extends AsyncDisposable {
  upstream: Upstream
  /** Creates the same upstream in another process, with the probed capabilities. */
  configs: UpstreamConfigs
  /** Absolute path of the module of the upstream; absent: a built-in kind. */
  module?: string
  info: { kind: string; url: string; model: string; version?: string; capabilities: Capabilities }
  /** Tokens of prompt and answer together; undefined if the engine does not state a limit. */
  contextTokens: number | undefined
  /** Result of the probe; absent for the tiny engine, whose capabilities are known. */
  report?: ProbeReport
  /** Replicas that were not ready. They receive calls when they answer. */
  down?: readonly { url: string; why: string }[]
}

type UpstreamConfigs = [UpstreamConfig, ...UpstreamConfig[]]

/** An engine lists its models at once, unless it loads. */
const REACH_TIMEOUT_MS = 20_000
/** A probe sends a few requests of a few tokens each. The first may compile kernels, and a busy engine queues them. */
const PROBE_TIMEOUT_MS = 600_000
/** After this time the user learns what the command waits for. */
const NOTICE_MS = 5000

/**
 * Opens the engine that answers model calls: starts the tiny engine, or detects the kind and probes the capabilities of the
 * engine at `choice.url`. The result owns the tiny engine and the HTTP connections; disposing it closes them. Throws
 * `config.invalid` for a choice that is wrong, `upstream.*` if the engine does not answer.
 */
export async function openEngine(choice: EngineChoice): Promise<OpenEngine> {
  if (choice.url !== undefined && choice.script !== undefined) {
    throw new RolloutError('config.invalid', '--script is for the tiny engine: remove --script or --engine-url.')
  }
  return choice.url === undefined ? openTiny(choice) : openRunning({ ...choice, url: choice.url })
}

async function openTiny(choice: EngineChoice): Promise<OpenEngine> {
  await using stack = new AsyncDisposableStack()
  const { url, modelName } = stack.use(await startTiny(choice))
  const configs: UpstreamConfigs = [{ kind: 'vllm', url, model: choice.model ?? modelName }]
  const upstream = stack.use(createUpstream(configs, deps))
  choice.signal?.throwIfAborted()
  const contextTokens = await upstream.contextTokens(modelName, AbortSignal.timeout(10_000))
  const owned = stack.move()
  return {
    upstream,
    configs,
    info: { kind: 'tiny', url, model: choice.model ?? modelName, capabilities: upstream.capabilities },
    contextTokens,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  }
}

async function openRunning(choice: EngineChoice & { url: string }): Promise<OpenEngine> {
  const urls = choice.url.split(',').map((url) => url.trim())
  const invalid = urls.find((url) => !URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol))
  if (invalid !== undefined) {
    throw new RolloutError('config.invalid', `--engine-url must be an http or https URL, not "${invalid}".`)
  }
  const module = choice.module === undefined ? undefined : resolve(choice.module)
  const plug = module === undefined ? undefined : await loadUpstream(module)
  await using stack = new AsyncDisposableStack()
  const open = async (url: string, signal: AbortSignal): Promise<Replica> => {
    const replica = await openReplica(url, { ...choice, plug }, signal)
    stack.use(replica.upstream)
    return replica
  }
  const { ready, down } = await reachEngines(urls, open, choice)
  const kinds = new Set(ready.map(({ config }) => config.kind))
  if (kinds.size > 1) {
    throw new RolloutError('config.invalid', `Replicas must be of one kind; these are ${[...kinds].join(' and ')}.`)
  }
  const report = mergeReports(ready.map((replica) => replica.report))
  const { model, version, capabilities, kind } = report
  // A replica that is down is assumed to be like the others. It receives calls when it answers.
  const configs = urls.map((url): UpstreamConfig => {
    const own = ready.find(({ config }) => config.url === url)?.config ?? { ...ready[0].config, url }
    return { ...own, capabilities }
  })
  const late = configs
    .filter(({ url }) => down.some((one) => one.url === url))
    .map((config) => stack.use(createUpstream(config, { ...deps, plug })))
  const [first, ...others] = [...ready.map(({ upstream }) => upstream), ...late]
  const upstream = others.length === 0 ? first! : createReplicas({ ...deps, replicas: [first!, ...others] })
  // The returned upstream owns the replicas from here on.
  stack.move()
  return {
    upstream,
    configs: configs as UpstreamConfigs,
    module,
    info: { kind, url: configs.map(({ url }) => url).join(','), model, version, capabilities },
    contextTokens: capabilities.contextTokens,
    report,
    down,
    [Symbol.asyncDispose]: () => upstream[Symbol.asyncDispose](),
  }
}

const deps = { now: () => performance.now() }

/** An engine that has answered a probe. */
interface Replica {
  config: UpstreamConfig
  upstream: Upstream
  report: ProbeReport
}

/** Detects the kind and requests the list of models where they are not chosen, then probes the engine. */
async function openReplica(
  url: string,
  choice: EngineChoice & { plug: UpstreamPlug | undefined },
  signal: AbortSignal,
): Promise<Replica> {
  const { plug, key: apiKey, onWait } = choice
  const reaching = AbortSignal.any([signal, AbortSignal.timeout(REACH_TIMEOUT_MS)])
  const ownKind = plug?.config.shape.kind.value as UpstreamKind | undefined
  const kind = ownKind ?? (await inTime(url, reaching, () => kindOf(choice.kind, { baseUrl: url, apiKey }, reaching)))
  const named: UpstreamConfig = { kind, url, apiKey }
  const model = choice.model ?? (await inTime(url, reaching, () => firstModel(named, plug, reaching)))
  const config = { ...named, model }
  await using stack = new AsyncDisposableStack()
  const upstream = stack.use(createUpstream(config, { ...deps, plug }))
  const probing = AbortSignal.any([signal, AbortSignal.timeout(PROBE_TIMEOUT_MS)])
  const slow = `The engine at ${url} has not yet answered a few requests of a few tokens: it compiles its model or is busy.`
  const notice = setTimeout(() => onWait?.(`${slow} Waiting up to ${PROBE_TIMEOUT_MS / 1000} s.`), NOTICE_MS)
  try {
    const report = await inTime(url, probing, () => upstream.probe(probing))
    stack.move()
    return { config, upstream, report }
  } finally {
    clearTimeout(notice)
  }
}

/** Converts the end of the time limit to an error that names the engine. */
async function inTime<T>(url: string, signal: AbortSignal, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const reason: unknown = signal.aborted ? signal.reason : undefined
    if ((reason as Error | undefined)?.name !== 'TimeoutError') throw error
    throw new RolloutError('upstream.timeout', `The engine at ${url} accepts connections and does not answer.`, {
      cause: error,
    })
  }
}

async function kindOf(
  chosen: string | undefined,
  options: { baseUrl: string; apiKey?: string },
  signal: AbortSignal,
): Promise<UpstreamKind> {
  if (chosen !== undefined && chosen !== 'auto') return chosen as UpstreamKind
  return (await detectKind(options, signal)).kind
}

async function firstModel(
  config: UpstreamConfig,
  plug: UpstreamPlug | undefined,
  signal: AbortSignal,
): Promise<string> {
  await using upstream = createUpstream(config, { ...deps, plug })
  const [model] = await upstream.listModels(signal)
  if (model !== undefined) return model
  throw new RolloutError('upstream.failed', `The engine at ${config.url} serves no model.`)
}

/**
 * Returns warnings about replicas that are down, and about findings of the probe that prevent exact capture or continuation.
 * `mode`: the user's choice of continuation.
 */
export function warningsOf({ report, down = [] }: Pick<OpenEngine, 'report' | 'down'>, mode?: string): string[] {
  const absent = down.map(
    ({ url, why }) => `Warning: the replica ${url} is not ready and receives calls when it answers. ${why}`,
  )
  return report === undefined ? absent : [...absent, ...warningsOfReport(report, mode)]
}

function warningsOfReport(report: ProbeReport, mode: string | undefined): string[] {
  const details = `For details: polar doctor --engine-url ${report.url}`
  if (!allowsExact(report)) {
    const blocking = report.findings.filter(({ verdict }) => verdict === 'blocking')
    return [
      ...blocking.map(({ about, evidence, meaning }) => `Warning: ${about}: ${evidence}. ${meaning}`),
      `Calls to this engine are not captured exactly. ${details}`,
    ]
  }
  const { via, why } = continuationOf(report.capabilities, mode)
  if (via === 'chat' || mode === 'off') return []
  const state = via === 'off' ? `Literal continuation is off: ${why}` : `Literal continuation uses completions: ${why}`
  return [`Warning: ${state}. ${details}`]
}

async function startTiny(choice: EngineChoice): Promise<Engine> {
  const script = choice.script === undefined ? undefined : await readScript(choice.script)
  return startTinyEngine({ script, log: choice.log })
}

/** Reads a script of the tiny engine. Throws `config.invalid`. */
export function readScript(path: string): Promise<string> {
  return orInvalid(`Cannot read the script ${path}`, () => readFile(path, 'utf8'))
}
