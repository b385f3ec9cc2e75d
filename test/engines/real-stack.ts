import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pino from 'pino'
import { openEngine, type EngineChoice } from '../../src/compose/open-engine.ts'
import { Gateway, type SessionAccess } from '../../src/gateway/gateway.ts'
import type { ContinuationMode } from '../../src/gateway/sessions/sessions.ts'
import type { ProbeReport, Upstream } from '../../src/gateway/upstreams/upstream.ts'
import { randomIds } from '../../src/lib/random-ids.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { createCallLogStore } from '../../src/store/call-log/store.ts'

/** A gateway in this process in front of a running engine, opened and probed like `polar record` does. */
export class RealStack implements AsyncDisposable {
  readonly #owned: AsyncDisposableStack
  readonly gateway: Gateway
  readonly upstream: Upstream
  /** The findings that `polar doctor` prints. */
  readonly report: ProbeReport
  readonly #dir: string

  private constructor(
    parts: Pick<RealStack, 'gateway' | 'upstream' | 'report'>,
    dir: string,
    owned: AsyncDisposableStack,
  ) {
    this.gateway = parts.gateway
    this.upstream = parts.upstream
    this.report = parts.report
    this.#dir = dir
    this.#owned = owned
  }

  static async start(choice: EngineChoice & { url: string }, continuation?: ContinuationMode): Promise<RealStack> {
    await using stack = new AsyncDisposableStack()
    const dir = await mkdtemp(join(tmpdir(), 'polar-engines-'))
    stack.defer(() => rm(dir, { recursive: true, force: true }))
    const { upstream, report } = stack.use(await openEngine(choice))
    const store = stack.use(createCallLogStore({ dir, now: Date.now }))
    const parts = { upstream, store, ids: randomIds(Date.now), now: Date.now, logger: pino({ level: 'silent' }) }
    const gateway = stack.use(await Gateway.start({ ...parts, continuation }))
    return new RealStack({ gateway, upstream, report: report! }, dir, stack.move())
  }

  openSession(): Promise<SessionAccess> {
    return this.gateway.openSession({ origin: { test: true } })
  }

  /** Closes a session and reads its record. */
  async recorded(id: string): Promise<SessionRecord> {
    await this.gateway.closeSession(id)
    return createCallLogReader({ dir: this.#dir }).load(id)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync()
  }
}
