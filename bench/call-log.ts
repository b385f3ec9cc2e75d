import { appendFile, mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { createCallLogReader } from '../src/store/call-log/reader.ts'
import { createCallLogStore } from '../src/store/call-log/store.ts'
import type { SessionLog, TurnEnd, TurnIntent } from '../src/store/store.ts'

/** The best round is reported, for both sides, because the machine may have other work. */
const ROUNDS = 3
const SESSIONS = 20
const TURNS = 10
const SAMPLED = 2000
/** Prompts grow by the sampled tokens and a tool result; on average 12k ids and 50 KB. */
const ADDED_IDS = 200
const FIRST_IDS = 12_000 - ((TURNS - 1) / 2) * (SAMPLED + ADDED_IDS)
const BYTES_PER_ID = 4.2

interface BenchTurn {
  intent: TurnIntent
  end: TurnEnd
}

interface Cost {
  cpuMicros: number
  wallMicros: number
  p50Micros: number
  p99Micros: number
}

export interface CallLogBench {
  /** A turn that continues its conversation, and the same turn as a line of JSON. */
  append: Cost
  appendJson: Cost
  /** A turn of 12k ids and 50 KB that shares nothing with an earlier one. */
  appendFirst: Cost
  appendFirstJson: Cost
  /** Prompt and sampled tokens together. */
  tokensPerSecond: { write: number; writeJson: number; read: number; readJson: number }
  bytesPerToken: { open: number; closed: number; json: number }
  closeMillis: number
  retainedBytesPerToken: number
}

/** Measures appending a turn to a call log and reading it back, compared with a file of JSON lines in the same run. */
export async function benchCallLog(): Promise<CallLogBench> {
  const dir = await mkdtemp(join(tmpdir(), 'polar-bench-'))
  try {
    await runRound(join(dir, 'warm-up'))
    const rounds: Round[] = []
    for (let round = 0; round < ROUNDS; round += 1) rounds.push(await runRound(join(dir, `round-${round}`)))
    const result = { ...bestOf(rounds), retainedBytesPerToken: await measureRetained(join(dir, 'memory')) }
    print(result)
    return result
  } finally {
    await rm(dir, { recursive: true, force: true })
  }
}

type Round = Omit<CallLogBench, 'retainedBytesPerToken'>

function bestOf(rounds: readonly Round[]): Round {
  const cheapest = (pick: (round: Round) => Cost): Cost =>
    rounds.map(pick).reduce((best, cost) => (cost.cpuMicros < best.cpuMicros ? cost : best))
  const fastest = (key: keyof Round['tokensPerSecond']): number =>
    Math.max(...rounds.map((round) => round.tokensPerSecond[key]))
  const [first] = rounds
  if (first === undefined) throw new Error('There was no round')
  return {
    append: cheapest((round) => round.append),
    appendJson: cheapest((round) => round.appendJson),
    appendFirst: cheapest((round) => round.appendFirst),
    appendFirstJson: cheapest((round) => round.appendFirstJson),
    tokensPerSecond: {
      write: fastest('write'),
      writeJson: fastest('writeJson'),
      read: fastest('read'),
      readJson: fastest('readJson'),
    },
    bytesPerToken: first.bytesPerToken,
    closeMillis: Math.min(...rounds.map((round) => round.closeMillis)),
  }
}

async function runRound(dir: string): Promise<Round> {
  const sessions = Array.from({ length: SESSIONS }, (_, session) => makeSession(session))
  const firsts = Array.from({ length: SESSIONS * 5 }, (_, session) =>
    makeTurn(0, 0, makeIds(session, 12_000), makeText(session, 50_000)),
  )
  const tokens = sum(sessions.flat().map(tokensOf))
  const path = (session: number): string => join(dir, `session-${session}`, 'calls.plog')
  const jsonPath = (session: number): string => join(dir, `${session}.jsonl`)
  await using store = createCallLogStore({ dir })

  const logs = await Promise.all(sessions.map((_, session) => store.open(opening(`session-${session}`))))
  const append = await measure(
    sessions.flatMap((turns, session) => turns.map((turn) => () => appendTurn(logs[session], turn))),
  )
  await Promise.all(logs.map((log) => log.flush()))
  const openBytes = sum(await sizes(sessions.map((_, session) => path(session))))
  const closing = performance.now()
  for (const log of logs) await log.close()
  const closeMillis = (performance.now() - closing) / SESSIONS
  const closedBytes = sum(await sizes(sessions.map((_, session) => path(session))))

  const appendJson = await measure(
    sessions.flatMap((turns, session) => turns.map((turn) => () => appendFile(jsonPath(session), toLine(turn)))),
  )
  const jsonBytes = sum(await sizes(sessions.map((_, session) => jsonPath(session))))

  const firstLogs = await Promise.all(firsts.map((_, session) => store.open(opening(`first-${session}`))))
  const appendFirst = await measure(firsts.map((turn, session) => () => appendTurn(firstLogs[session], turn)))
  const appendFirstJson = await measure(
    firsts.map((turn, n) => () => appendFile(join(dir, `first-${n}.jsonl`), toLine(turn))),
  )

  const reader = createCallLogReader({ dir })
  const read = await measure(sessions.map((_, session) => () => reader.load(`session-${session}`)))
  const readJson = await measure(sessions.map((_, session) => () => loadLines(jsonPath(session))))

  const turns = SESSIONS * TURNS
  return {
    append,
    appendJson,
    appendFirst,
    appendFirstJson,
    tokensPerSecond: {
      write: tokens / ((append.wallMicros * turns) / 1e6),
      writeJson: tokens / ((appendJson.wallMicros * turns) / 1e6),
      read: tokens / ((read.wallMicros * SESSIONS) / 1e6),
      readJson: tokens / ((readJson.wallMicros * SESSIONS) / 1e6),
    },
    bytesPerToken: { open: openBytes / tokens, closed: closedBytes / tokens, json: jsonBytes / tokens },
    closeMillis,
  }
}

/** Measures the memory of open logs per token of their conversations. */
async function measureRetained(dir: string): Promise<number> {
  await using store = createCallLogStore({ dir })
  const logs = await Promise.all(Array.from({ length: 30 }, (_, session) => store.open(opening(`session-${session}`))))
  const used = async (): Promise<number> => {
    // Objects of a timer or a finished write are released only in later turns of the event loop.
    for (let n = 0; n < 3; n += 1) {
      await new Promise((resolve) => setTimeout(resolve, 100))
      collect()
    }
    const { heapUsed, arrayBuffers } = process.memoryUsage()
    return heapUsed + arrayBuffers
  }
  const before = await used()
  let captured = 0
  for (const [session, log] of logs.entries()) captured += await appendSession(log, session)
  await Promise.all(logs.map((log) => log.flush()))
  return ((await used()) - before) / captured
}

/** Returns the number of tokens of the conversation. A separate function, so that its objects can be collected. */
async function appendSession(log: SessionLog, session: number): Promise<number> {
  const turns = makeSession(session)
  for (const turn of turns) await appendTurn(log, turn)
  return Math.max(...turns.map(tokensOf))
}

async function appendTurn(log: SessionLog | undefined, { intent, end }: BenchTurn): Promise<void> {
  if (log === undefined) throw new Error('There is no such log')
  log.appendIntent(intent)
  await log.appendEnd(end)
  log.appendDelivery(intent.id, 'delivered')
  if (log.broken !== undefined) throw new Error(log.broken.message)
}

function opening(id: string): { id: string; createdAt: number; origin: Record<string, unknown> } {
  return { id, createdAt: Date.now(), origin: {} }
}

function makeSession(session: number): BenchTurn[] {
  const turns: BenchTurn[] = []
  let prompt = makeIds(session, FIRST_IDS)
  let history = makeText(session, FIRST_IDS * BYTES_PER_ID)
  for (let index = 0; index < TURNS; index += 1) {
    const turn = makeTurn(session, index, prompt, history)
    turns.push(turn)
    const sampled = turn.end.response?.choices[0]?.ids ?? []
    prompt = Int32Array.from([...prompt, ...sampled, ...makeIds(session * TURNS + index, ADDED_IDS)])
    history += makeText(session * TURNS + index + 1, (SAMPLED + ADDED_IDS) * BYTES_PER_ID)
  }
  return turns
}

function makeTurn(session: number, index: number, promptIds: Int32Array, history: string): BenchTurn {
  const id = `turn-${session}-${index}`
  const seed = session * 1000 + index
  // A copy through bytes: a request is one flat string from the network, not a chain of pieces.
  const request = Buffer.from(
    JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: history }] }),
  ).toString()
  const intent = {
    id,
    index,
    dialect: 'openai-chat',
    startedAt: 1,
    model: 'policy',
    stream: true,
    request,
    headers: {},
  }
  const random = createRandom(seed)
  const choice = {
    index: 0,
    message: {
      role: 'assistant' as const,
      content: [{ type: 'text' as const, text: makeText(seed, SAMPLED * BYTES_PER_ID) }],
      toolCalls: [],
    },
    finishReason: 'stop' as const,
    ids: makeIds(seed + 7, SAMPLED),
    logprobs: Float32Array.from({ length: SAMPLED }, () => Math.log(1 - random() ** 3)),
  }
  const response = { id: `answer-${id}`, model: 'policy', created: 1, promptIds, choices: [choice] }
  const end = {
    turnId: id,
    endedAt: 2,
    forced: {},
    response: { ...response, grade: 'exact' as const, gradeReasons: [] },
  }
  return { intent, end }
}

/** Ids with the distribution of a vocabulary: a few of them are frequent. */
function makeIds(seed: number, length: number): Int32Array {
  const random = createRandom(seed)
  return Int32Array.from({ length }, () => Math.floor(150_000 * random() ** 4))
}

function makeText(seed: number, length: number): string {
  const random = createRandom(seed)
  let text = ''
  while (text.length < length) text += `${Math.floor(4000 * random() ** 3).toString(36)}ing `
  return text.slice(0, length)
}

function toLine({ intent, end }: BenchTurn): string {
  const response = end.response && {
    ...end.response,
    promptIds: Array.from(end.response.promptIds),
    choices: end.response.choices.map((choice) => ({
      ...choice,
      ids: Array.from(choice.ids),
      logprobs: Array.from(choice.logprobs),
    })),
  }
  return `${JSON.stringify({ ...intent, ...end, response })}\n`
}

async function loadLines(path: string): Promise<unknown[]> {
  const lines = (await readFile(path, 'utf8')).trimEnd().split('\n')
  return lines.map((line) => {
    const turn = JSON.parse(line)
    turn.response.promptIds = Int32Array.from(turn.response.promptIds)
    for (const choice of turn.response.choices) {
      choice.ids = Int32Array.from(choice.ids)
      choice.logprobs = Float32Array.from(choice.logprobs)
    }
    return turn
  })
}

/** Collects garbage, so that it does not count for the next measurement. */
function collect(): void {
  setFlagsFromString('--expose-gc')
  const gc: () => void = runInNewContext('gc')
  gc()
}

async function measure(work: readonly (() => Promise<unknown>)[]): Promise<Cost> {
  const times: number[] = []
  collect()
  const cpu = process.cpuUsage()
  const start = performance.now()
  for (const piece of work) {
    const before = performance.now()
    await piece()
    times.push((performance.now() - before) * 1000)
  }
  const wallMicros = ((performance.now() - start) * 1000) / work.length
  const { user, system } = process.cpuUsage(cpu)
  times.sort((a, b) => a - b)
  const at = (share: number): number => times[Math.floor(times.length * share)] ?? 0
  return { cpuMicros: (user + system) / work.length, wallMicros, p50Micros: at(0.5), p99Micros: at(0.99) }
}

function print({
  append,
  appendJson,
  appendFirst,
  appendFirstJson,
  tokensPerSecond,
  bytesPerToken,
  ...rest
}: CallLogBench): void {
  const cost = ({ cpuMicros, p50Micros, p99Micros }: Cost): string =>
    `${cpuMicros.toFixed(0)} us CPU, wall p50 ${p50Micros.toFixed(0)} us, p99 ${p99Micros.toFixed(0)} us`
  const ratio = (value: number): string => `${value.toFixed(1)}x`
  const million = (value: number): string => `${(value / 1e6).toFixed(1)} M`
  const { write, writeJson, read, readJson } = tokensPerSecond
  const lines = [
    `call log, per turn of 50 KB, 12k prompt ids, 2k sampled (JSON: stringify + appendFile of the same turn)`,
    `  next turn of a conversation   ${cost(append)}`,
    `  as JSON                       ${cost(appendJson)}: ${ratio(appendJson.cpuMicros / append.cpuMicros)} the CPU`,
    `  turn that shares nothing      ${cost(appendFirst)}`,
    `  as JSON                       ${cost(appendFirstJson)}: ${ratio(appendFirstJson.cpuMicros / appendFirst.cpuMicros)} the CPU`,
    `  tokens/s written              ${million(write)}, JSON ${million(writeJson)}: ${ratio(write / writeJson)}`,
    `  tokens/s read                 ${million(read)}, JSON ${million(readJson)}: ${ratio(read / readJson)}`,
    `  bytes per token               ${bytesPerToken.open.toFixed(2)} open, ${bytesPerToken.closed.toFixed(2)} closed, ` +
      `JSON ${bytesPerToken.json.toFixed(2)}: ${ratio(bytesPerToken.json / bytesPerToken.closed)}`,
    `  close                         ${rest.closeMillis.toFixed(1)} ms a session, with sync and packing`,
    `  kept by the writer            ${rest.retainedBytesPerToken.toFixed(1)} bytes per token of an open conversation`,
  ]
  console.log(lines.join('\n'))
}

function tokensOf({ end }: BenchTurn): number {
  return (end.response?.promptIds.length ?? 0) + SAMPLED
}

async function sizes(paths: readonly string[]): Promise<number[]> {
  return Promise.all(paths.map(async (path) => (await stat(path)).size))
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}

function createRandom(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}
