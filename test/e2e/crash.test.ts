import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import OpenAI from 'openai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { startEngine, type Engine } from '../../packages/tiny-engine/src/engine.ts'
import type { SessionAccess } from '../../src/gateway/gateway.ts'
import { textOf } from '../../src/model/message.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { runs } from '../support/runs.ts'

const CALLS = 50
const KILLS = runs(8)
const SCRIPT = 'default: { tokens: 40, per_token_ms: 1 }'

let engine: Engine
let scratch: string

beforeAll(async () => {
  engine = await startEngine({ script: SCRIPT })
  scratch = await mkdtemp(join(tmpdir(), 'polar-crash-'))
})

afterAll(async () => {
  await engine[Symbol.asyncDispose]()
  await rm(scratch, { recursive: true, force: true })
})

test(`kill -9 of the gateway at ${KILLS} random times during ${CALLS} calls loses no call whose end the client received`, async () => {
  const undisturbed = await run(join(scratch, 'whole'), undefined)
  expect(undisturbed.received).toHaveLength(CALLS)
  expect(await lost(undisturbed)).toEqual([])

  let interrupted = 0
  for (let round = 0; round < KILLS; round++) {
    const killed = await run(join(scratch, `kill-${round}`), Math.random() * undisturbed.durationMs)
    if (killed.received.length < CALLS) interrupted += 1
    expect(await lost(killed), `round ${round}, ${killed.received.length} calls received`).toEqual([])
  }
  expect(interrupted).toBeGreaterThan(0)
})

interface Run {
  dir: string
  sessionId: string
  durationMs: number
  /** Answers whose last frame the client received. */
  received: { id: string; text: string }[]
}

async function run(dir: string, killAfterMs: number | undefined): Promise<Run> {
  const program = fileURLToPath(new URL('../support/gateway-process.ts', import.meta.url))
  const child = spawn(process.execPath, [program, engine.url, dir], { stdio: ['ignore', 'pipe', 'inherit'] })
  const access = await firstLine(child)
  const received: Run['received'] = []
  const startedAt = Date.now()
  const timer = killAfterMs === undefined ? undefined : setTimeout(() => child.kill('SIGKILL'), killAfterMs)
  const queue = Array.from({ length: CALLS }, (_, i) => i)
  await Promise.all(Array.from({ length: 5 }, () => worker(access, queue, received)))
  const durationMs = Date.now() - startedAt
  clearTimeout(timer)
  const exited = once(child, 'exit')
  if (child.exitCode === null && child.signalCode === null) {
    child.kill('SIGKILL')
    await exited
  }
  return { dir, sessionId: access.id, durationMs, received }
}

async function firstLine(child: ChildProcess): Promise<SessionAccess> {
  const lines = createInterface({ input: child.stdout as NodeJS.ReadableStream })
  const [line] = (await once(lines, 'line')) as [string]
  lines.close()
  return JSON.parse(line) as SessionAccess
}

async function worker(access: SessionAccess, queue: number[], received: Run['received']): Promise<void> {
  const client = new OpenAI({ baseURL: `${access.baseUrl}/v1`, apiKey: access.key, maxRetries: 0 })
  for (let n = queue.shift(); n !== undefined; n = queue.shift()) {
    try {
      const stream = await client.chat.completions.create({
        model: 'tiny',
        messages: [{ role: 'user', content: `call ${n}` }],
        stream: n % 3 !== 0 ? true : undefined,
      } as OpenAI.ChatCompletionCreateParamsStreaming)
      received.push(await readAnswer(stream))
    } catch {
      // The gateway process ended before or during the response: the client did not receive the end of this call.
    }
  }
}

async function readAnswer(
  answer: AsyncIterable<OpenAI.ChatCompletionChunk> | OpenAI.ChatCompletion,
): Promise<{ id: string; text: string }> {
  if ('choices' in answer) return { id: answer.id, text: answer.choices[0]?.message.content ?? '' }
  let id = ''
  let text = ''
  let finished = false
  for await (const chunk of answer) {
    id = chunk.id
    text += chunk.choices[0]?.delta.content ?? ''
    finished ||= chunk.choices[0]?.finish_reason != null
  }
  if (!finished) throw new Error('the stream ended early')
  return { id, text }
}

/** Returns the answers that the client received but the log lacks or stores differently. */
async function lost({ dir, sessionId, received }: Run): Promise<unknown[]> {
  const session = await createCallLogReader({ dir }).load(sessionId)
  const stored = new Map(session.turns.map((turn) => [turn.response?.id, turn]))
  return received.filter(({ id, text }) => {
    const turn = stored.get(id)
    const choice = turn?.response?.choices[0]
    return choice === undefined || turn?.response?.grade !== 'exact' || textOf(choice.message) !== text
  })
}
