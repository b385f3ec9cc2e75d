import { readFile } from 'node:fs/promises'
import { startEngine, type Engine } from '../engine/engine.ts'
import { createVllm } from '../gateway/upstreams/vllm.ts'
import type { Upstream } from '../gateway/upstreams/upstream.ts'
import { RolloutError } from '../model/failure.ts'

export interface EngineChoice {
  /** An engine that runs already; absent starts the tiny one. */
  upstream?: string
  model?: string
  upstreamKey?: string
  /** YAML of turns for the tiny engine to play; absent lets its model answer. */
  script?: string
  engineLog?: string
}

export interface OpenEngine extends AsyncDisposable {
  upstream: Upstream
  info: { kind: string; url: string; model: string }
  /** Prompt and answer together; undefined when the engine does not say. */
  contextTokens: number | undefined
}

/** The engine a command works with, running and asked for its models. */
export async function openEngine(choice: EngineChoice): Promise<OpenEngine> {
  if (choice.upstream !== undefined && choice.script !== undefined) {
    throw new RolloutError('config.invalid', '--script plays on the tiny engine; it cannot go with --upstream.')
  }
  await using stack = new AsyncDisposableStack()
  const url = choice.upstream ?? stack.use(await startTiny(choice)).url
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
    throw new RolloutError('config.invalid', `--upstream must be an http or https URL, not "${url}".`)
  }
  const probe = createVllm({ baseUrl: url, apiKey: choice.upstreamKey })
  stack.use(probe)
  const served = await probe.listModels(AbortSignal.timeout(10_000))
  const model = choice.model ?? served[0]
  if (model === undefined) throw new RolloutError('upstream.failed', `The engine at ${url} serves no model.`)
  const upstream = stack.use(createVllm({ baseUrl: url, model, apiKey: choice.upstreamKey }))
  const contextTokens = await upstream.contextTokens(model, AbortSignal.timeout(10_000))
  const owned = stack.move()
  return {
    upstream,
    info: { kind: choice.upstream === undefined ? 'tiny' : 'vllm', url, model },
    contextTokens,
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  }
}

async function startTiny(choice: EngineChoice): Promise<Engine> {
  const script = choice.script === undefined ? undefined : await readScript(choice.script)
  return startEngine({ script, log: choice.engineLog })
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
