import type { SessionRecord } from '../../src/model/session.ts'
import type { Turn } from '../../src/model/turn.ts'

export interface AgentSessionOptions {
  turns: number
  /** Tokens of the last call's prompt and answer. */
  length: number
  /** Whether prompts are views of one array, as the call log returns them, or each has its own. */
  isShared: boolean
}

/** A recorded conversation of an agent: every prompt is the previous one, its answer, and a tool result. */
export function agentSession({ turns, length, isShared }: AgentSessionOptions): SessionRecord {
  const ids = new Int32Array(length)
  for (let i = 0; i < length; i++) ids[i] = Math.imul(i, 0x9e3779b1) >>> 15
  const step = Math.floor(length / (turns + 1))
  const sampled = Math.max(1, Math.floor(step / 3))
  const view = (from: number, to: number): Int32Array => (isShared ? ids.subarray(from, to) : ids.slice(from, to))
  return {
    id: 'ses_bench',
    createdAt: 0,
    origin: {},
    complete: true,
    incompleteReasons: [],
    turns: Array.from({ length: turns }, (_, index) => {
      const promptEnd = step * (index + 2) - sampled
      return turnOf(index, view(0, promptEnd), view(promptEnd, promptEnd + sampled))
    }),
  }
}

function turnOf(index: number, promptIds: Int32Array, ids: Int32Array): Turn {
  return {
    id: `turn_${index}`,
    sessionId: 'ses_bench',
    index,
    dialect: 'openai-chat',
    startedAt: index * 2,
    endedAt: index * 2 + 1,
    model: 'tiny',
    stream: true,
    request: '{}',
    headers: {},
    forced: {},
    delivery: 'delivered',
    response: {
      id: `r${index}`,
      model: 'tiny',
      created: 0,
      promptIds,
      grade: 'exact',
      gradeReasons: [],
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: [], toolCalls: [] },
          finishReason: 'stop',
          ids,
          logprobs: new Float32Array(ids.length).fill(-0.5),
        },
      ],
    },
  }
}
