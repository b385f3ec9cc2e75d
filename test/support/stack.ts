import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import pino from 'pino'
import { startEngine, type Engine, type EngineOptions } from '../../packages/tiny-engine/src/engine.ts'
import { Gateway, type SessionAccess } from '../../src/gateway/gateway.ts'
import type { BodyLimits } from '../../src/gateway/http/read-body.ts'
import type { QuirkRule } from '../../src/gateway/quirks/rule.ts'
import type { ContinuationMode } from '../../src/gateway/sessions/sessions.ts'
import { createUpstream } from '../../src/gateway/upstreams/index.ts'
import { randomIds } from '../../src/lib/random-ids.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { createCallLogStore } from '../../src/store/call-log/store.ts'

export interface StackOptions {
  /** YAML for the script policy; absent: the model answers. */
  script?: string
  /** API of the engine, default vLLM's newest. If set, the gateway probes the engine's capabilities. */
  engine?: Pick<EngineOptions, 'wire' | 'wireVersion' | 'scaleOut'>
  /** Returns the URL by which the gateway calls the engine; default: the engine's URL. */
  via?: (engineUrl: string) => Promise<string>
  limits?: Partial<BodyLimits>
  continuation?: ContinuationMode
  quirks?: readonly QuirkRule[]
  /** Origin in the log, as `polar record` writes it. */
  origin?: Readonly<Record<string, unknown>>
  /** Folder of sessions; default: a temporary folder. */
  dir?: string
}

/** A real engine and gateway with one open session in this process. */
export class Stack implements AsyncDisposable {
  readonly #owned: AsyncDisposableStack
  readonly engine: Engine
  readonly gateway: Gateway
  readonly session: SessionAccess
  readonly dir: string
  readonly #engineLog: string

  private constructor(
    parts: Pick<Stack, 'engine' | 'gateway' | 'session' | 'dir'>,
    engineLog: string,
    owned: AsyncDisposableStack,
  ) {
    this.engine = parts.engine
    this.gateway = parts.gateway
    this.session = parts.session
    this.dir = parts.dir
    this.#engineLog = engineLog
    this.#owned = owned
  }

  static async start(options: StackOptions = {}): Promise<Stack> {
    await using stack = new AsyncDisposableStack()
    const scratch = await mkdtemp(join(tmpdir(), 'polar-test-'))
    stack.defer(() => rm(scratch, { recursive: true, force: true }))
    const dir = options.dir ?? join(scratch, 'sessions')
    const engineLog = join(scratch, 'engine.jsonl')
    const engine = stack.use(await startEngine({ ...options.engine, script: options.script, log: engineLog }))
    const baseUrl = (await options.via?.(engine.url)) ?? engine.url
    const kind = options.engine?.wire ?? 'vllm'
    const upstream = stack.use(createUpstream({ kind, url: baseUrl, model: 'tiny' }, { now: () => performance.now() }))
    if (options.engine !== undefined) await upstream.probe(AbortSignal.timeout(20_000))
    const store = stack.use(createCallLogStore({ dir, now: Date.now }))
    const logger = pino({ level: 'silent' })
    const gateway = stack.use(
      await Gateway.start({
        upstream,
        store,
        ids: randomIds(Date.now),
        now: Date.now,
        logger,
        limits: options.limits,
        continuation: options.continuation,
        quirks: options.quirks,
      }),
    )
    const session = await gateway.openSession({ origin: options.origin ?? { test: true } })
    return new Stack({ engine, gateway, session, dir }, engineLog, stack.move())
  }

  client(options: { baseURL?: string; apiKey?: string } = {}): OpenAI {
    return new OpenAI({ baseURL: `${this.session.baseUrl}/v1`, apiKey: this.session.key, maxRetries: 0, ...options })
  }

  /** Closes the session and reads its record. */
  async recorded(): Promise<SessionRecord> {
    await this.gateway.closeSession(this.session.id)
    return createCallLogReader({ dir: this.dir }).load(this.session.id)
  }

  /** Returns the engine's log, one entry per finished generation. */
  async engineCalls(): Promise<EngineCall[]> {
    const text = await readFile(this.#engineLog, 'utf8')
    return text
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as EngineCall)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync()
  }
}

export interface EngineCall {
  request_id: string
  prompt_token_ids: number[]
  choices: { index: number; token_ids: number[]; logprobs: number[]; text: string; finish_reason: string }[]
  aborted: boolean
}
