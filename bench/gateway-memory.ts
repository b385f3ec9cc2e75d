import { mkdtempDisposable } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { request } from 'undici'
import type { SessionAccess } from '../src/gateway/gateway.ts'
import { Child, startEngineProcess } from './support/child.ts'
import type { GatewayReady } from './support/gateway-process.ts'
import { readHeldMemory, type HeldMemory } from './support/memory.ts'
import { openArena, toTarget } from './support/parties.ts'
import { createWords, requestBody } from './support/prompt.ts'
import { printTitledTable } from './support/table.ts'

const SESSIONS = 12
const TURNS = 24
const SESSIONS_AT_A_TIME = 4
const SAMPLED_TOKENS = 400
const TOOL_RESULT_BYTES = 2400
/** More than the longest conversation. */
const CONTEXT_TOKENS = 200_000

const IDLE_SESSIONS = 200
/** Calls of each session at the time of the measurement. */
const IDLE_AFTER_CALLS = [1, 4, 16]

type Gateway = Child<GatewayReady>

/** Measures the memory of the gateway process: per captured token, and per idle session. */
export async function benchGatewayMemory(): Promise<void> {
  const rows = [['what', 'measured', 'target'], ...(await capturedTokens()), ...(await idleSessions())]
  printTitledTable('against the targets', rows)
}

// --- captured tokens --------------------------------------------------------------------------------------------------

interface Captured {
  calls: number
  /** Tokens of the last call's prompt and answer. Every earlier prompt and answer is a prefix of these. */
  distinct: number
  sampled: number
  /** Prompts and answers of all calls. */
  read: number
}

/** Simulates agents: every prompt is the previous one, its answer and a tool result. */
async function capturedTokens(): Promise<string[][]> {
  await using stack = new AsyncDisposableStack()
  const { path } = stack.use(await mkdtempDisposable(join(tmpdir(), 'polar-bench-')))
  const engine = stack.use(await startEngineProcess(`default: { tokens: ${SAMPLED_TOKENS} }`, CONTEXT_TOKENS))
  const gateway = stack.use(await Child.start<GatewayReady>('gateway-process.ts', [engine.ready.url, path, '0']))
  await converse(gateway, { sessions: 4, turns: 4 }, (opened) => close(gateway, opened))
  const before = await memoryOf(gateway)
  let open: HeldMemory = before
  const captured = await converse(gateway, { sessions: SESSIONS, turns: TURNS }, async (opened) => {
    open = await memoryOf(gateway)
    await close(gateway, opened)
  })
  const closed = await memoryOf(gateway)
  const lists = await listBytes(captured)
  const row = (name: string, bytes: number, resident?: number): string[] => [
    name,
    megabytes(bytes),
    perToken(bytes, captured.distinct),
    perToken(bytes, captured.read),
    resident === undefined ? '' : megabytes(resident),
  ]
  printTitledTable(
    `${SESSIONS} sessions of ${TURNS} calls: ${captured.distinct} distinct tokens, ${captured.sampled} of them sampled; ` +
      `${captured.read} with the prompt of every call`,
    [
      ['held', 'MB', 'B per distinct token', 'B per token of every call', 'resident MB'],
      row('gateway, sessions open', open.held - before.held, open.resident - before.resident),
      row('gateway, sessions closed', closed.held - before.held, closed.resident - before.resident),
      row('lists of numbers, each distinct token once', lists.distinct),
      row('lists of numbers, as every answer had them', lists.all),
    ],
  )
  return [
    [
      'held for each distinct token captured, sessions open',
      perToken(open.held - before.held, captured.distinct),
      '≤ 12 B',
    ],
    ['… sessions closed', perToken(closed.held - before.held, captured.distinct), '0 B'],
  ]
}

/** `look` runs while the sessions are still open. */
async function converse(
  gateway: Gateway,
  { sessions, turns }: { sessions: number; turns: number },
  look: (opened: readonly SessionAccess[]) => Promise<void>,
): Promise<Captured> {
  const captured: Captured = { calls: 0, distinct: 0, sampled: 0, read: 0 }
  const opened = await gateway.ask<SessionAccess[]>({ kind: 'open', count: sessions })
  const waiting = [...opened]
  const worker = async (): Promise<void> => {
    for (let session = waiting.pop(); session !== undefined; session = waiting.pop())
      await playSession(session, { turns, seed: waiting.length + 1 }, captured)
  }
  await Promise.all(Array.from({ length: SESSIONS_AT_A_TIME }, worker))
  await look(opened)
  return captured
}

interface ChatAnswer {
  choices: { message: { role: string; content: string } }[]
  usage: { prompt_tokens: number; completion_tokens: number }
}

async function playSession(
  session: SessionAccess,
  { turns, seed }: { turns: number; seed: number },
  captured: Captured,
): Promise<void> {
  const body = requestBody({ stream: false, replay: '', withIds: false })
  const messages = body['messages'] as object[]
  // Sessions of one task have the same first prompt and differ from their first answer on.
  const words = createWords(seed)
  let distinct = 0
  for (let turn = 0; turn < turns; turn++) {
    const { choices, usage } = await call(session, body)
    const message = choices[0]?.message
    if (message === undefined) throw new Error('an answer without a choice')
    messages.push(message, { role: 'user', content: `Result of call ${turn}: ${words(TOOL_RESULT_BYTES)}` })
    distinct = usage.prompt_tokens + usage.completion_tokens
    captured.calls += 1
    captured.sampled += usage.completion_tokens
    captured.read += distinct
  }
  captured.distinct += distinct
}

async function call(session: SessionAccess, body: object): Promise<ChatAnswer> {
  const { origin, path, key } = toTarget(session)
  const response = await request(origin + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${key}` },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(60_000),
  })
  const text = await response.body.text()
  if (response.statusCode !== 200) throw new Error(`the gateway answered ${response.statusCode}: ${text.slice(0, 200)}`)
  return JSON.parse(text) as ChatAnswer
}

/** Measures the same ids and log probabilities as JSON.parse makes them, from a tenth of the data. */
async function listBytes(captured: Captured): Promise<{ distinct: number; all: number }> {
  const bytesOf = async (ids: number, logprobs: number): Promise<number> => {
    const before = await readHeldMemory()
    const idList = JSON.parse(`[${'12345,'.repeat(ids / 10)}12345]`) as number[]
    const logprobList = JSON.parse(`[${'-0.123,'.repeat(logprobs / 10)}-0.123]`) as number[]
    const after = await readHeldMemory()
    return (after.held - before.held) * (idList.length + logprobList.length > 0 ? 10 : 0)
  }
  return {
    distinct: await bytesOf(captured.distinct, captured.sampled),
    all: await bytesOf(captured.read, captured.sampled),
  }
}

// --- idle sessions ----------------------------------------------------------------------------------------------------

async function idleSessions(): Promise<string[][]> {
  await using arena = await openArena({ sessions: 8, parties: ['gateway'] })
  const { gateway, answers } = arena
  const [party] = arena.parties
  if (party === undefined) throw new Error('no gateway')
  const callEach = async (sessions: readonly SessionAccess[], seconds: number): Promise<void> => {
    const job = {
      request: { stream: false, replay: '', withIds: false },
      shape: { kind: 'streams', count: sessions.length, spreadSeconds: seconds },
      sessions: sessions.length,
    } as const
    const { failed, firstFailure } = await arena.load({ ...party, targets: () => sessions.map(toTarget) }, job)
    if (failed > 0) throw new Error(`${failed} calls failed: ${firstFailure}`)
  }
  for (let i = 0; i < 8; i++) await callEach(gateway.ready.sessions, 0.1)
  await close(gateway, gateway.ready.sessions)
  const before = await memoryOf(gateway)
  const opened = await gateway.ask<SessionAccess[]>({ kind: 'open', count: IDLE_SESSIONS })
  const rows: string[][] = []
  const targets: string[][] = []
  const look = async (calls: number): Promise<void> => {
    const now = await memoryOf(gateway)
    const each = (now.held - before.held) / IDLE_SESSIONS
    rows.push([
      String(calls),
      kilobytes(each),
      kilobytes((now.resident - before.resident) / IDLE_SESSIONS),
      calls === 0 ? '' : perToken(each, answers.promptTokens + calls * answers.sampledTokens),
    ])
    const what = `an idle session after ${calls} ${calls === 1 ? 'call' : 'calls'} of 50 KB`
    if (calls > 0) targets.push([what, `${kilobytes(each)} KB`, '≤ 1024 KB'])
  }
  await look(0)
  let made = 0
  for (const calls of IDLE_AFTER_CALLS) {
    for (; made < calls; made++) await callEach(opened, 2)
    await look(calls)
  }
  printTitledTable(
    `${IDLE_SESSIONS} idle sessions; each call has a prompt of ${answers.promptTokens} tokens, ` +
      `${answers.sampledTokens} are sampled`,
    [['calls made', 'KB held per session', 'resident KB', 'B per distinct token'], ...rows],
  )
  return targets
}

function memoryOf(gateway: Gateway): Promise<HeldMemory> {
  return gateway.ask<HeldMemory>({ kind: 'memory' })
}

async function close(gateway: Gateway, sessions: readonly SessionAccess[]): Promise<void> {
  await gateway.ask({ kind: 'close', sessions: sessions.map(({ id }) => id) })
}

function perToken(bytes: number, tokens: number): string {
  return `${(bytes / tokens).toFixed(1)} B`
}

function kilobytes(bytes: number): string {
  return (bytes / 1024).toFixed(0)
}

function megabytes(bytes: number): string {
  return (bytes / 2 ** 20).toFixed(1)
}
