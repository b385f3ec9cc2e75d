import { randomUUID } from 'node:crypto'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { createApp } from './app.ts'
import { loadChatTemplate } from './chat-template.ts'
import { TokenTexts } from './choice.ts'
import type { EngineContext } from './context.ts'
import { Control, EngineMetrics } from './control.ts'
import { type GenerationRecord, openGenerationLog } from './generation-log.ts'
import { embeddedModelFolder } from './model-package.ts'
import { createModelPolicy, type ModelPolicyOptions } from './policies/model.ts'
import type { Policy } from './policies/policy.ts'
import { parseScript, type Script, type ScriptInput } from './policies/script-schema.ts'
import { createScriptPolicy } from './policies/script.ts'
import { PromptEncoder } from './prompt.ts'
import type { GenerationConfig } from './sampling.ts'
import { EngineSetupError } from './setup-error.ts'
import { loadTokenizer, type Tokenizer } from './tokenizer.ts'
import { createWire, type WireKind } from './wires.ts'

export interface EngineOptions {
  /** Default 127.0.0.1. */
  host?: string
  /** Default 0: a free port. */
  port?: number
  /** HTTP API of the engine; default vLLM's. */
  wire?: WireKind
  /** Version of the API, with its gaps and defects; default the newest known. */
  wireVersion?: string
  /** Whether vLLM's endpoints for rendering and for ids are enabled, as by `--enable-scale-out`. Before 0.30 they always are. */
  scaleOut?: boolean
  /** Default `tiny`. */
  servedModelName?: string
  /** Maximum tokens of prompt and answer together; default 32768, the model's limit, or the script's value. */
  maxModelLen?: number
  /** Maximum number of alternatives per request; default 20 as in vLLM, -1 is the whole vocabulary. */
  maxLogprobs?: number
  /** Sampling defaults of the server, as in a model's `generation_config.json`; default none. */
  generationConfig?: GenerationConfig
  /** Answers every request with a 503 until `finishLoading` is called, like an engine that reads its weights. */
  isLoading?: boolean
  /** Scripted turns, as YAML text or as an object; absent: the model answers. */
  script?: string | ScriptInput
  /** Settings of the model's execution. */
  model?: ModelPolicyOptions
  /** Replaces script and model; disposed with the engine. */
  policy?: Policy
  /** Required by every endpoint except `/health`, `/ping` and `/version`. */
  apiKey?: string
  /** File that receives a JSON line per finished generation, or a callback that receives the record. */
  log?: string | ((record: GenerationRecord) => void)
  /** Default `default`, as vLLM's. */
  weightVersion?: string
  /** Milliseconds since 1970. */
  now?: () => number
  /** Returns unique hex digits for ids. */
  newId?: () => string
}

export interface Engine extends AsyncDisposable {
  /** Without a trailing slash. */
  readonly url: string
  readonly port: number
  readonly modelName: string
  /** Number of requests in progress. */
  readonly runningCount: number
  /** Ends the loading that `isLoading` began. */
  finishLoading(): void
  /** Closes open connections, then waits for the log. */
  close(): Promise<void>
}

/** Starts the engine. It accepts requests when the promise resolves. */
export async function startEngine(options: EngineOptions = {}): Promise<Engine> {
  const folder = embeddedModelFolder()
  const tokenizer = await loadTokenizer(folder)
  await using stack = new AsyncDisposableStack()
  const script = options.script === undefined ? undefined : parseScript(options.script)
  const { wire, version } = createWire(options.wire ?? 'vllm', options.wireVersion, options)
  const policy = stack.use(await createPolicy(options, script, tokenizer))
  const log = options.log === undefined ? undefined : stack.use(await openGenerationLog(options.log))
  const context: EngineContext = {
    policy: wire.wrapPolicy?.(policy) ?? policy,
    wire,
    texts: new TokenTexts(tokenizer),
    template: await loadChatTemplate(folder, tokenizer, {
      images: script?.model.images,
      coercesArguments: wire.coercesArguments,
    }),
    encoder: new PromptEncoder(tokenizer),
    control: new Control(options.weightVersion ?? 'default'),
    metrics: new EngineMetrics(),
    log,
    modelName: options.servedModelName ?? 'tiny',
    maxModelLen: options.maxModelLen ?? script?.model.context_tokens ?? 32_768,
    maxLogprobs: options.maxLogprobs ?? 20,
    generationConfig: options.generationConfig,
    isLoading: options.isLoading ?? false,
    now: options.now ?? Date.now,
    newId: options.newId ?? (() => randomUUID().replaceAll('-', '')),
  }
  const server = createServer(createApp(context, { apiKey: options.apiKey, version }))
  // Answers have no time limit; a client that sends no request does.
  server.requestTimeout = 120_000
  server.keepAliveTimeout = 60_000
  await listen(server, options.port ?? 0, options.host ?? '127.0.0.1')
  stack.defer(() => stopServing(server, context.control))
  const owned = stack.move()
  const { port } = server.address() as AddressInfo
  const close = () => owned.disposeAsync()
  return {
    url: `http://${toUrlHost(options.host ?? '127.0.0.1')}:${port}`,
    port,
    modelName: context.modelName,
    get runningCount() {
      return context.control.runningCount
    },
    finishLoading: () => void (context.isLoading = false),
    close,
    [Symbol.asyncDispose]: close,
  }
}

async function createPolicy(options: EngineOptions, script: Script | undefined, tokenizer: Tokenizer): Promise<Policy> {
  if (options.policy !== undefined) return options.policy
  if (script === undefined) return createModelPolicy(options.model)
  if (script.logprobs === 'synthetic') return createScriptPolicy(script, { tokenizer })
  const model = await createModelPolicy(options.model)
  const policy = createScriptPolicy(script, {
    tokenizer,
    score: async (promptIds, ids) => (await model.score(promptIds, ids)).logprobs,
  })
  return { ...policy, [Symbol.asyncDispose]: () => model[Symbol.asyncDispose]() }
}

function listen(server: Server, port: number, host: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (error: Error) => {
      const message = `The engine cannot listen on ${host} port ${port}: ${error.message}`
      reject(new EngineSetupError(message, { cause: error }))
    }
    server.once('error', fail)
    server.listen(port, host, () => {
      server.off('error', fail)
      resolve()
    })
  })
}

/** Stops new and running requests. All sampled tokens are in the log when it resolves. */
async function stopServing(server: Server, control: Control): Promise<void> {
  const closed = new Promise((resolve) => server.close(resolve))
  server.closeAllConnections()
  control.resume()
  await control.pause('abort')
  await closed
}

function toUrlHost(host: string): string {
  if (host === '0.0.0.0' || host === '::') return '127.0.0.1'
  return host.includes(':') ? `[${host}]` : host
}
