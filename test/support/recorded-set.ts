import type { SessionLog, TurnIntent } from '../../src/store/store.ts'
import { createCallLogStore } from '../../src/store/call-log/store.ts'
import type { TurnResponse } from '../../src/model/turn.ts'

export interface RecordedSet {
  /** Folder of the call logs. */
  dir: string
  sessions: number
  turns: number
  /** Number of ids that a tool result and a model's answer add to the conversation. */
  addedIds: number
  sampledIds: number
  /** Prefix of names and contents; two sets with the same seed are identical. */
  seed?: number
}

/** Writes synthetic agent sessions in the gateway's log format: every request repeats the conversation so far. */
export async function recordSet(set: RecordedSet): Promise<string[]> {
  await using store = createCallLogStore({ dir: set.dir, now: () => 0 })
  const ids: string[] = []
  for (let number = 0; number < set.sessions; number += 1) {
    const id = `ses-${set.seed ?? 0}-${String(number).padStart(5, '0')}`
    const log = await store.open({ id, createdAt: 1_700_000_000_000 + number, origin: { made: 'up' } })
    await recordSession(log, set, number)
    await log.close()
    if (log.broken !== undefined) throw new Error(log.broken.message)
    ids.push(id)
  }
  return ids
}

async function recordSession(log: SessionLog, set: RecordedSet, number: number): Promise<void> {
  const random = randomFrom((set.seed ?? 0) * 7919 + number)
  const { addedIds, sampledIds } = set
  const history = new Int32Array(set.turns * (addedIds + sampledIds))
  for (let i = 0; i < history.length; i += 1) history[i] = random() % 150_000
  const messages: unknown[] = []
  let read = 0
  for (let turn = 0; turn < set.turns; turn += 1) {
    messages.push({
      role: turn === 0 ? 'user' : 'tool',
      ...(turn > 0 && { tool_call_id: `c${turn}` }),
      content: words(random, addedIds),
    })
    read += addedIds
    const answer = words(random, sampledIds)
    log.appendIntent(toIntent(log.sessionId, turn, JSON.stringify({ model: 'policy', messages })))
    await log.appendEnd({
      turnId: `${log.sessionId}-turn-${turn}`,
      endedAt: 2000 + turn * 10,
      forced: {},
      response: toResponse(history.slice(0, read), history.slice(read, read + sampledIds), answer, turn + 1, random),
    })
    log.appendDelivery(`${log.sessionId}-turn-${turn}`, 'delivered')
    const call = { id: `c${turn + 1}`, type: 'function', function: { name: 'bash', arguments: '{"command": "ls"}' } }
    messages.push({ role: 'assistant', content: answer, tool_calls: [call] })
    read += sampledIds
  }
}

function toIntent(sessionId: string, index: number, request: string): TurnIntent {
  return {
    id: `${sessionId}-turn-${index}`,
    index,
    dialect: 'openai-chat',
    startedAt: 2000 + index * 10 - 5,
    model: 'policy',
    stream: true,
    request,
    headers: {},
  }
}

function toResponse(
  promptIds: Int32Array,
  ids: Int32Array,
  text: string,
  call: number,
  random: () => number,
): TurnResponse {
  return {
    id: `r${call}`,
    model: 'policy',
    created: 0,
    promptIds,
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: [{ type: 'text', text }],
          toolCalls: [{ id: `c${call}`, name: 'bash', arguments: '{"command": "ls"}' }],
        },
        finishReason: 'tool-calls',
        ids,
        logprobs: Float32Array.from(ids, () => -(random() % 1000) / 997),
        weightSpans: [{ from: 0, version: String(1 + (random() % 2)) }],
      },
    ],
    grade: 'exact',
    gradeReasons: [],
  }
}

/** About four characters per token. */
function words(random: () => number, tokens: number): string {
  const parts: string[] = []
  for (let i = 0; i < tokens; i += 1) parts.push((random() % 46_656).toString(36))
  return parts.join(' ')
}

/** Returns pseudo-random numbers below 2^31 of a seed. */
function randomFrom(seed: number): () => number {
  let state = (seed + 1) >>> 0
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state >>> 1
  }
}
