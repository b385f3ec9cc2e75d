import { setTimeout as sleep } from 'node:timers/promises'
import pino from 'pino'
import { describe, expect, onTestFinished, test, vi } from 'vitest'
import type { Client } from '../../src/client/client.ts'
import { systemClock } from '../../src/lib/async/clock.ts'
import { NodeStageMetrics } from '../../src/model/node.ts'
import type { PauseMode } from '../../src/model/policy.ts'
import type { WorkerNode } from '../../src/node/server-link/worker-node.ts'
import { StageWidths } from '../../src/node/session/stages.ts'
import { Worker } from '../../src/node/worker.ts'
import { registration, startTestServer } from '../support/rollout-server.ts'
import { Stack, type EngineCall } from '../support/stack.ts'

const SCRIPT = 'default: { tokens: 12, per_token_ms: 20 }'
/** Versions that are set while calls in flight continue in the engine. */
const HELD: ReadonlySet<string> = new Set(['2', '4'])
const WAIT = { timeout: 120_000, interval: 20 }

/** The entry of the engine's log for one generation, with the versions that sampled it. */
interface Generation extends EngineCall {
  weight_version: string
  weight_changes?: { from_token: number; weight_version: string }[]
}

/** Gateways that have joined a server as nodes. They share one engine and run no sessions of the server. */
class Nodes {
  readonly client: Client
  readonly stacks: Stack[] = []
  readonly #stop = new AbortController()
  readonly #calls: Promise<void>[] = []
  /** Number of complete answers. */
  answers = 0

  constructor(client: Client) {
    this.client = client
  }

  get engine(): Stack['engine'] {
    return this.stacks[0]!.engine
  }

  async join(nodeId: string): Promise<Stack> {
    const engineUrl = this.stacks[0]?.engine.url
    const stack = await Stack.start({ script: SCRIPT, via: async (own) => engineUrl ?? own })
    onTestFinished(() => stack[Symbol.asyncDispose]())
    const worker = await Worker.start({
      client: this.client,
      node: idleNode(stack.dir),
      gateway: stack.gateway,
      nodeId,
      registration: { ...registration, heartbeat_interval_seconds: 30 },
      labels: [],
      version: '0.0.0',
      minFreeMb: 0,
      logger: pino({ level: 'silent' }),
      clock: systemClock,
    })
    onTestFinished(() => worker[Symbol.asyncDispose]())
    this.stacks.push(stack)
    return stack
  }

  /** Streams one answer after the other until `stop`. */
  load(stack: Stack, name: string): void {
    const calls = async (): Promise<void> => {
      for (let i = 0; !this.#stop.signal.aborted; i++) await this.#call(stack, `${name} ${i}`)
    }
    const ended = calls()
    ended.catch(() => {})
    this.#calls.push(ended)
  }

  async #call({ session }: Stack, content: string): Promise<void> {
    const body = { model: 'tiny', stream: true, messages: [{ role: 'user', content }] }
    const headers = { authorization: `Bearer ${session.key}`, 'content-type': 'application/json' }
    const url = `${session.baseUrl}/v1/chat/completions`
    const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })
    const text = await response.text()
    expect(response.status, text).toBe(200)
    expect(text).toContain('data: [DONE]')
    this.answers += 1
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    await Promise.all(this.#calls)
  }

  /** Waits for answers to calls that were sent after now. */
  async untilAnswers(): Promise<void> {
    const before = this.answers
    await vi.waitFor(() => expect(this.answers).toBeGreaterThan(before + 2 * this.#calls.length), WAIT)
  }

  async tellEngine(path: string, body: object = {}): Promise<void> {
    const headers = { 'content-type': 'application/json' }
    const response = await fetch(`${this.engine.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
    expect(response.status, path).toBe(200)
  }

  loadWeights(version: number): Promise<void> {
    return this.tellEngine('/update_weight_version', { new_version: String(version) })
  }

  /** Changes the weights as a trainer does. */
  async update(version: number, mode: PauseMode): Promise<void> {
    if (mode === 'drain') {
      await this.client.pausePolicy({ body: { mode } })
      expect(this.engine.runningCount).toBe(0)
      await this.loadWeights(version)
      await this.client.putPolicy({ body: { version, resume: true } })
      return
    }
    await this.#freezeStreams()
    await this.client.pausePolicy({ body: { mode } })
    await this.client.putPolicy({ body: { version } })
    await this.loadWeights(version)
    await this.tellEngine('/resume')
    await this.client.resumePolicy({ query: {} })
  }

  /** Pauses the engine within answers, which later continue with the new weights. */
  async #freezeStreams(): Promise<void> {
    for (;;) {
      await vi.waitFor(() => expect(this.engine.runningCount).toBeGreaterThan(0), WAIT)
      await this.tellEngine('/pause?mode=keep')
      if (this.engine.runningCount > 0) return
      await this.tellEngine('/resume')
    }
  }
}

function idleNode(dir: string): WorkerNode {
  return {
    dir,
    widths: StageWidths.parse({}),
    metrics: NodeStageMetrics.parse({}),
    sessions: [],
    progressOf: () => undefined,
    archive: async () => undefined,
    submit: () => {
      throw new Error('The test submits no task.')
    },
  }
}

/** The version that sampled each token. */
function sampledVersions({ choices, weight_version, weight_changes = [] }: Generation): string[] {
  return choices[0]!.token_ids.map(
    (_, i) => weight_changes.findLast(({ from_token }) => from_token <= i)?.weight_version ?? weight_version,
  )
}

describe('pause, update and resume through the server under load', { timeout: 300_000 }, () => {
  test('no call fails, and every token is stamped with the version that sampled it', async () => {
    const at = await startTestServer()
    onTestFinished(() => at[Symbol.asyncDispose]())
    const nodes = new Nodes(at.client)
    for (const name of ['n1', 'n2']) {
      const stack = await nodes.join(name)
      for (const caller of ['a', 'b']) nodes.load(stack, `${name} ${caller}`)
      // Calls before the first version have none.
      if (name === 'n1') await nodes.untilAnswers()
    }
    await nodes.update(1, 'drain')
    await nodes.untilAnswers()
    for (const version of [2, 3, 4]) {
      await nodes.update(version, HELD.has(String(version)) ? 'hold' : 'drain')
      await nodes.untilAnswers()
    }

    // A node that joins during a pause holds its calls, and sends them with the current version.
    await at.client.pausePolicy({ body: {} })
    await nodes.loadWeights(5)
    const third = await nodes.join('n3')
    nodes.load(third, 'n3 a')
    const { nodes: confirmed } = await at.client.putPolicy({ body: { version: 5 } })
    expect(confirmed).toMatchObject(['n1', 'n2', 'n3'].map((node_id) => ({ node_id, version: 5, confirmed: true })))
    const answered = nodes.answers
    await sleep(100)
    expect(nodes.answers).toBe(answered)
    await at.client.resumePolicy({ query: {} })
    await nodes.untilAnswers()
    await nodes.stop()

    const generations = (await nodes.stacks[0]!.engineCalls()) as Generation[]
    const byPrompt = new Map(generations.map((each) => [each.prompt_token_ids.join(), each]))
    const wrong: unknown[] = []
    let turnsWithVersion = 0
    let changedWithin = 0
    for (const stack of nodes.stacks) {
      for (const { response, failure } of (await stack.recorded()).turns) {
        expect(failure).toBeUndefined()
        const generation = byPrompt.get(response!.promptIds.join())!
        const [choice] = response!.choices
        expect(Array.from(choice!.ids)).toEqual(generation.choices[0]!.token_ids)
        const sampled = sampledVersions(generation)
        if (sampled[0] === 'default') {
          expect(choice!.weightSpans ?? []).toEqual([])
          continue
        }
        turnsWithVersion += 1
        if (generation.weight_changes !== undefined) changedWithin += 1
        for (const [i, version] of sampled.entries()) {
          const { version: oldest, newest = oldest } = choice!.weightSpans!.findLast(({ from }) => from <= i)!
          // A range is possible only for calls in flight during an update that held them.
          const isCertain = oldest === newest || HELD.has(newest)
          const isRight = isCertain && oldest <= version && version <= newest
          if (!isRight) wrong.push({ i, version, oldest, newest })
        }
      }
    }
    expect(wrong).toEqual([])
    expect(new Set(generations.map(({ weight_version }) => weight_version))).toEqual(
      new Set(['default', '1', '2', '3', '4', '5']),
    )
    expect(turnsWithVersion).toBeGreaterThan(20)
    expect(changedWithin).toBeGreaterThan(1)
  })
})
