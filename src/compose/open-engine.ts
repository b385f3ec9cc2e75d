import { readFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import type { Engine } from '@polar-rl/tiny-engine'
import { createUpstream, detectKind, type UpstreamConfig, type UpstreamKind } from '../gateway/upstreams/index.ts'
import { loadUpstream, type UpstreamPlug } from '../gateway/upstreams/load-upstream.ts'
import {
  allowsExact,
  continuationOf,
  type Capabilities,
  type ProbeReport,
  type Upstream,
} from '../gateway/upstreams/upstream.ts'
import { RolloutError } from '../model/failure.ts'
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
  /** When it aborts, opening stops and its reason is thrown. */
  signal?: AbortSignal
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
}

type UpstreamConfigs = [UpstreamConfig, ...UpstreamConfig[]]

/** A probe sends about ten requests of few tokens each. The first ones of a cold engine may take a minute. */
const PROBE_TIMEOUT_MS = 300_000

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
  await using stack = new AsyncDisposableStack()
  const timeout = AbortSignal.timeout(PROBE_TIMEOUT_MS)
  const signal = choice.signal === undefined ? timeout : AbortSignal.any([timeout, choice.signal])
  const module = choice.module === undefined ? undefined : resolve(choice.module)
  const plug = module === undefined ? undefined : await loadUpstream(module)
  const found = await toConfigs(choice, plug, signal)
  const upstream = stack.use(createUpstream(found, { ...deps, plug }))
  const report = await probeInTime(upstream, { signal, timeout })
  const { model, version, capabilities, kind, url } = report
  const [first, ...others] = found.map((config) => ({ ...config, capabilities }))
  const owned = stack.move()
  return {
    upstream,
    configs: [first!, ...others],
    module,
    info: { kind, url, model, version, capabilities },
    contextTokens: capabilities.contextTokens,
    report,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  }
}

const deps = { now: () => performance.now() }

/** Completes the choice: detects the kind and requests the list of models where they are not chosen. */
async function toConfigs(
  choice: EngineChoice & { url: string },
  plug: UpstreamPlug | undefined,
  signal: AbortSignal,
): Promise<UpstreamConfigs> {
  const urls = choice.url.split(',').map((url) => url.trim())
  const [first, ...others] = await Promise.all(
    urls.map(async (url) => {
      if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
        throw new RolloutError('config.invalid', `--engine-url must be an http or https URL, not "${url}".`)
      }
      const apiKey = choice.key
      const ownKind = plug?.config.shape.kind.value as UpstreamKind | undefined
      const kind = ownKind ?? (await kindOf(choice.kind, { baseUrl: url, apiKey }, signal))
      const config: UpstreamConfig = { kind, url, apiKey }
      return { ...config, model: choice.model ?? (await firstModel(config, plug, signal)) }
    }),
  )
  const kinds = new Set([first, ...others].map((config) => config?.kind))
  if (kinds.size > 1) {
    throw new RolloutError('config.invalid', `Replicas must be of one kind; these are ${[...kinds].join(' and ')}.`)
  }
  return [first!, ...others]
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

async function probeInTime(
  upstream: Upstream,
  { signal, timeout }: { signal: AbortSignal; timeout: AbortSignal },
): Promise<ProbeReport> {
  try {
    return await upstream.probe(signal)
  } catch (error) {
    if (!timeout.aborted) throw error
    const seconds = PROBE_TIMEOUT_MS / 1000
    const message = `The engine at ${upstream.url} did not answer a few requests of few tokens within ${seconds} s. Try again when it is less busy.`
    throw new RolloutError('upstream.timeout', message, { cause: error })
  }
}

/** Returns warnings about findings of the probe that prevent exact capture or continuation. `mode`: the user's choice. */
export function warningsOf({ report }: Pick<OpenEngine, 'report'>, mode?: string): string[] {
  if (report === undefined) return []
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
export async function readScript(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    throw new RolloutError('config.invalid', `Cannot read the script ${path}: ${(error as Error).message}`, {
      cause: error,
    })
  }
}
