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
import { EngineSetupError } from './setup-error.ts'
import { loadTokenizer, type Tokenizer } from './tokenizer.ts'
import { createWire, type WireKind } from './wires.ts'

export interface EngineOptions {
  /** Default 127.0.0.1. */
  host?: string
  /** Default 0: one that is free. */
  port?: number
  /** Whose HTTP API is spoken; default vLLM's. */
  wire?: WireKind
  /** Which version of it, with what that one lacks or gets wrong; default the newest known. */
  wireVersion?: string
  /** Default `tiny`. */
  servedModelName?: string
  /** Prompt and answer together; default 32768, the most the model can, or what the script says. */
  maxModelLen?: number
  /** Most alternatives a request may ask for; default 20 as vLLM's, -1 is the whole vocabulary. */
  maxLogprobs?: number
  /** Turns to play, as YAML text or as an object; absent lets the model answer. */
  script?: string | ScriptInput
  /** How the model runs. */
  model?: ModelPolicyOptions
  /** Stands in for both; disposed with the engine. */
  policy?: Policy
  /** Asked for by every endpoint but `/health`, `/ping` and `/version`. */
  apiKey?: string
  /** File that gets a JSON line per finished generation, or a callback that gets the record. */
  log?: string | ((record: GenerationRecord) => void)
  /** Default `default`, as vLLM's. */
  weightVersion?: string
  /** Milliseconds since 1970. */
  now?: () => number
  /** Hex digits for ids, never the same twice. */
  newId?: () => string
}

export interface Engine extends AsyncDisposable {
  /** Without a slash at the end. */
  readonly url: string
  readonly port: number
  readonly modelName: string
  /** Requests being generated right now. */
  readonly runningCount: number
  /** Breaks open connections off, then waits for the log. */
  close(): Promise<void>
}

/** Starts the engine; it answers when the promise resolves. */
export async function startEngine(options: EngineOptions = {}): Promise<Engine> {
  const folder = embeddedModelFolder()
  const tokenizer = await loadTokenizer(folder)
  await using stack = new AsyncDisposableStack()
  const script = options.script === undefined ? undefined : parseScript(options.script)
  const { wire, version } = createWire(options.wire ?? 'vllm', options.wireVersion)
  const policy = stack.use(await createPolicy(options, script, tokenizer))
  const log = options.log === undefined ? undefined : stack.use(await openGenerationLog(options.log))
  const context: EngineContext = {
    policy: wire.wrapPolicy?.(policy) ?? policy,
    wire,
    texts: new TokenTexts(tokenizer),
    template: await loadChatTemplate(folder, tokenizer, { images: script?.model.images }),
    encoder: new PromptEncoder(tokenizer),
    control: new Control(options.weightVersion ?? 'default'),
    metrics: new EngineMetrics(),
    log,
    modelName: options.servedModelName ?? 'tiny',
    maxModelLen: options.maxModelLen ?? script?.model.context_tokens ?? 32_768,
    maxLogprobs: options.maxLogprobs ?? 20,
    now: options.now ?? Date.now,
    newId: options.newId ?? (() => randomUUID().replaceAll('-', '')),
  }
  const server = createServer(createApp(context, { apiKey: options.apiKey, version }))
  // Answers may take as long as they take; a client that sends nothing may not.
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
    close,
    [Symbol.asyncDispose]: close,
  }
}

async function createPolicy(options: EngineOptions, script: Script | undefined, tokenizer: Tokenizer): Promise<Policy> {
  if (options.policy !== undefined) return options.policy
  if (script === undefined) return createModelPolicy(options.model)
  if (script.logprobs === 'synthetic') return createScriptPolicy(script, { tokenizer })
  const model = await createModelPolicy(options.model)
  const policy = createScriptPolicy(script, { tokenizer, score: (promptIds, ids) => model.score(promptIds, ids) })
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

/** No new requests, none running: what was sampled so far is in the log when this resolves. */
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
