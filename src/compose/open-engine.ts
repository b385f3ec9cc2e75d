import { readFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import type { Engine } from '@polar-rl/tiny-engine'
import {
  createUpstream,
  detectKind,
  upstreams,
  type UpstreamConfig,
  type UpstreamKind,
} from '../gateway/upstreams/index.ts'
import { loadUpstream, type UpstreamPlug } from '../gateway/upstreams/load-upstream.ts'
import { allowsExact, type Capabilities, type ProbeReport, type Upstream } from '../gateway/upstreams/upstream.ts'
import { RolloutError } from '../model/failure.ts'
import { startTinyEngine } from './tiny-engine.ts'

/** What `--engine` takes. */
export const ENGINE_KINDS = ['auto', ...upstreams.kinds] as const

export const ENGINE_FLAG = {
  type: 'string',
  hint: 'KIND',
  choices: ENGINE_KINDS,
  default: 'auto',
  description: 'What listens at --upstream; auto asks it',
} as const

export const CONTINUATION_FLAG = {
  type: 'string',
  hint: 'MODE',
  choices: ['template', 'preserve', 'off'],
  default: 'template',
  description: 'Whether prompts go on token by token, and what of reasoning the template drops',
} as const

export const DURABILITY_FLAG = {
  type: 'string',
  hint: 'KIND',
  choices: ['process', 'disk'],
  default: 'process',
  description: 'A stored turn survives the end of the process, or of the machine',
} as const

/** What harnesses are told of the context when neither the user nor the engine knows. */
export const USUAL_CONTEXT = 131_072

export interface EngineChoice {
  /** An engine that runs already, or several with commas between them; absent starts the tiny one. */
  upstream?: string
  /** One of `ENGINE_KINDS`. */
  engine?: string
  /** Path of a module that exports `upstream`; replaces `engine`. */
  module?: string
  model?: string
  upstreamKey?: string
  /** YAML of turns for the tiny engine to play; absent lets its model answer. */
  script?: string
  engineLog?: string
  /** Nobody waits for it any more: the signal’s reason is thrown. */
  signal?: AbortSignal
}

export interface OpenEngine extends AsyncDisposable {
  upstream: Upstream
  /** How another process gets the same upstream, found out and all. */
  configs: UpstreamConfigs
  /** Absolute path of the module of the upstream; absent: a built-in kind. */
  module?: string
  info: { kind: string; url: string; model: string; version?: string; capabilities: Capabilities }
  /** Prompt and answer together; undefined when the engine does not say. */
  contextTokens: number | undefined
  /** Of an engine of the user's; the tiny one is known. */
  report?: ProbeReport
}

type UpstreamConfigs = [UpstreamConfig, ...UpstreamConfig[]]

/** A probe makes a handful of requests of one token; one that waits longer has to wait for a busy engine. */
const PROBE_TIMEOUT_MS = 60_000

/** The engine a command works with: running, recognised and found out. */
export async function openEngine(choice: EngineChoice): Promise<OpenEngine> {
  if (choice.upstream !== undefined && choice.script !== undefined) {
    throw new RolloutError('config.invalid', '--script plays on the tiny engine; it cannot go with --upstream.')
  }
  return choice.upstream === undefined ? openTiny(choice) : openRunning({ ...choice, upstream: choice.upstream })
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

async function openRunning(choice: EngineChoice & { upstream: string }): Promise<OpenEngine> {
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
    info: { kind, url, model, ...(version === undefined ? {} : { version }), capabilities },
    contextTokens: capabilities.contextTokens,
    report,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  }
}

const deps = { now: () => performance.now() }

/** What the flags say, with kind and model found out where they do not. */
async function toConfigs(
  choice: EngineChoice & { upstream: string },
  plug: UpstreamPlug | undefined,
  signal: AbortSignal,
): Promise<UpstreamConfigs> {
  const urls = choice.upstream.split(',').map((url) => url.trim())
  const [first, ...others] = await Promise.all(
    urls.map(async (url) => {
      if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
        throw new RolloutError('config.invalid', `--upstream must be an http or https URL, not "${url}".`)
      }
      const apiKey = choice.upstreamKey
      const ownKind = plug?.config.shape.kind.value as UpstreamKind | undefined
      const kind = ownKind ?? (await kindOf(choice.engine, { baseUrl: url, apiKey }, signal))
      const config: UpstreamConfig = { kind, url, ...(apiKey === undefined ? {} : { apiKey }) }
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
  wanted: string | undefined,
  options: { baseUrl: string; apiKey?: string },
  signal: AbortSignal,
): Promise<UpstreamKind> {
  if (wanted !== undefined && wanted !== 'auto') return wanted as UpstreamKind
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
    const message = `The engine at ${upstream.url} did not answer a few tiny requests within ${seconds} s; is it busy?`
    throw new RolloutError('upstream.timeout', message, { cause: error })
  }
}

/** What keeps calls from being exact, for people. */
export function warningsOf({ report }: Pick<OpenEngine, 'report'>): string[] {
  if (report === undefined || allowsExact(report)) return []
  const blocking = report.findings.filter(({ verdict }) => verdict === 'blocking')
  return [
    ...blocking.map(({ about, evidence, meaning }) => `Warning: ${about}: ${evidence}. ${meaning}`),
    `What is recorded cannot be trained on exactly; polar doctor --upstream ${report.url} says more.`,
  ]
}

async function startTiny(choice: EngineChoice): Promise<Engine> {
  const script = choice.script === undefined ? undefined : await readScript(choice.script)
  return startTinyEngine({ script, log: choice.engineLog })
}

async function readScript(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    throw new RolloutError('config.invalid', `Cannot read the script ${path}: ${(error as Error).message}`, {
      cause: error,
    })
  }
}
