import { appendFile, mkdtempDisposable, readFile, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createCallLogReader } from '../src/store/call-log/reader.ts'
import { createCallLogStore } from '../src/store/call-log/store.ts'
import type { SessionLog, TurnEnd, TurnIntent } from '../src/store/store.ts'
import { createRandom } from './sim/random.ts'
import { collectGarbage, readHeldMemory } from './support/memory.ts'
import { percentile, sum } from './support/stats.ts'

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

/** The cost of each kind of work, of the round with the least processor time. */
type Costs = Record<'append' | 'appendJson' | 'appendFirst' | 'appendFirstJson' | 'read' | 'readJson', Cost>

interface Round {
  /**
   * `append`: a turn that continues its conversation. `appendFirst`: a turn of 12k ids and 50 KB that shares nothing with an
   * earlier one. `read`: a session. The others do the same with lines of JSON.
   */
  costs: Costs
  bytesPerToken: { open: number; closed: number; json: number }
  /** Prompt and sampled tokens together, of all sessions. */
  tokens: number
  closeMillis: number
}

/** Measures appending a turn to a call log and reading it back, compared with a file of JSON lines in the same run. */
export async function benchCallLog(): Promise<void> {
  await using scratch = await mkdtempDisposable(join(tmpdir(), 'polar-bench-'))
  await runRound(join(scratch.path, 'warm-up'))
  const rounds: Round[] = []
  for (let round = 0; round < ROUNDS; round += 1) rounds.push(await runRound(join(scratch.path, `round-${round}`)))
  print(bestOf(rounds), await measureRetained(join(scratch.path, 'memory')))
}

function bestOf(rounds: readonly Round[]): Round {
  const [first] = rounds
  if (first === undefined) throw new Error('There was no round')
  const costs = { ...first.costs }
  for (const round of rounds) {
    for (const name of Object.keys(costs) as (keyof Costs)[]) {
      if (round.costs[name].cpuMicros < costs[name].cpuMicros) costs[name] = round.costs[name]
    }
  }
  return { ...first, costs, closeMillis: Math.min(...rounds.map(({ closeMillis }) => closeMillis)) }
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

  return {
    costs: { append, appendJson, appendFirst, appendFirstJson, read, readJson },
    bytesPerToken: { open: openBytes / tokens, closed: closedBytes / tokens, json: jsonBytes / tokens },
    tokens,
    closeMillis,
  }
}

/** Measures the memory of open logs per token of their conversations. */
async function measureRetained(dir: string): Promise<number> {
  await using store = createCallLogStore({ dir })
  const logs = await Promise.all(Array.from({ length: 30 }, (_, session) => store.open(opening(`session-${session}`))))
  const before = await readHeldMemory()
  let captured = 0
  for (const [session, log] of logs.entries()) captured += await appendSession(log, session)
  await Promise.all(logs.map((log) => log.flush()))
  return ((await readHeldMemory()).held - before.held) / captured
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
  const random = createRandom(seed, 'call-log')
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
  const random = createRandom(seed, 'call-log')
  return Int32Array.from({ length }, () => Math.floor(150_000 * random() ** 4))
}

function makeText(seed: number, length: number): string {
  const random = createRandom(seed, 'call-log')
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

async function measure(work: readonly (() => Promise<unknown>)[]): Promise<Cost> {
  const times: number[] = []
  // So that garbage of earlier work does not count.
  collectGarbage()
  const cpu = process.cpuUsage()
  const start = performance.now()
  for (const piece of work) {
    const before = performance.now()
    await piece()
    times.push((performance.now() - before) * 1000)
  }
  const wallMicros = ((performance.now() - start) * 1000) / work.length
  const { user, system } = process.cpuUsage(cpu)
  const cpuMicros = (user + system) / work.length
  return { cpuMicros, wallMicros, p50Micros: percentile(times, 50), p99Micros: percentile(times, 99) }
}

function print({ costs, bytesPerToken, tokens, closeMillis }: Round, retainedBytesPerToken: number): void {
  const { append, appendJson, appendFirst, appendFirstJson, read, readJson } = costs
  const cost = ({ cpuMicros, p50Micros, p99Micros }: Cost): string =>
    `${cpuMicros.toFixed(0)} us CPU, wall p50 ${p50Micros.toFixed(0)} us, p99 ${p99Micros.toFixed(0)} us`
  const ratio = (value: number): string => `${value.toFixed(1)}x`
  const cpuRatio = (json: Cost, own: Cost): string => `${ratio(json.cpuMicros / own.cpuMicros)} the CPU`
  const speed = (own: Cost, json: Cost, pieces: number): string => {
    const million = ({ wallMicros }: Cost): string => `${(tokens / (wallMicros * pieces)).toFixed(1)} M`
    return `${million(own)}, JSON ${million(json)}: ${ratio(json.wallMicros / own.wallMicros)}`
  }
  const { open, closed, json } = bytesPerToken
  const lines = [
    `call log, per turn of 50 KB, 12k prompt ids, 2k sampled (JSON: stringify + appendFile of the same turn)`,
    `  next turn of a conversation   ${cost(append)}`,
    `  as JSON                       ${cost(appendJson)}: ${cpuRatio(appendJson, append)}`,
    `  turn that shares nothing      ${cost(appendFirst)}`,
    `  as JSON                       ${cost(appendFirstJson)}: ${cpuRatio(appendFirstJson, appendFirst)}`,
    `  tokens/s written              ${speed(append, appendJson, SESSIONS * TURNS)}`,
    `  tokens/s read                 ${speed(read, readJson, SESSIONS)}`,
    `  bytes per token               ${open.toFixed(2)} open, ${closed.toFixed(2)} closed, JSON ${json.toFixed(2)}: ${ratio(json / closed)}`,
    `  close                         ${closeMillis.toFixed(1)} ms a session, with sync and packing`,
    `  kept by the writer            ${retainedBytesPerToken.toFixed(1)} bytes per token of an open conversation`,
  ]
  console.log(lines.join('\n'))
}

function tokensOf({ end }: BenchTurn): number {
  return (end.response?.promptIds.length ?? 0) + SAMPLED
}

async function sizes(paths: readonly string[]): Promise<number[]> {
  return Promise.all(paths.map(async (path) => (await stat(path)).size))
}
