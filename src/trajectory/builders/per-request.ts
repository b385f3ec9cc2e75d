import { textOf, type AssistantMessage } from '../../model/message.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { Trace } from '../../model/trajectory.ts'
import { outcomeOf, type Choice, type Turn, type TurnResponse } from '../../model/turn.ts'
import type { Builder, BuildResult, Exclusion, PromptReader } from './builder.ts'

/** One trace per sampled choice. Only turns whose ids are proven are trained; the rest are listed with the reason. */
export const perRequest: Builder = {
  name: 'per_request',
  build(session: SessionRecord, { readPrompt }): BuildResult {
    const traces: Trace[] = []
    const exclusions: Exclusion[] = []
    for (const turn of session.turns) {
      const { response } = turn
      const reason = exclusionReason(turn)
      for (const choice of response?.choices ?? []) {
        if (reason === undefined && response) traces.push(toTrace(session, turn, response, choice, readPrompt))
        else exclusions.push({ turnId: turn.id, choice: choice.index, tokens: choice.ids.length, reason: reason ?? '' })
      }
      if (!response?.choices.length) exclusions.push({ turnId: turn.id, tokens: 0, reason: reason ?? 'no choice came' })
    }
    return { traces, exclusions }
  },
}

function exclusionReason(turn: Turn): string | undefined {
  const outcome = outcomeOf(turn)
  if (outcome === 'unfinished') return 'the call has no recorded end'
  if (turn.failure !== undefined) return `${turn.failure.code}: ${turn.failure.message}`
  if (turn.delivery === 'undelivered') return 'the harness did not get the whole answer'
  if (turn.response?.grade !== 'exact')
    return `grade ${turn.response?.grade}: ${turn.response?.gradeReasons.join('; ')}`
  return undefined
}

function toTrace(
  session: SessionRecord,
  turn: Turn,
  response: TurnResponse,
  choice: Choice,
  readPrompt: PromptReader,
): Trace {
  const prompt = readPrompt(turn)
  return {
    prompt_ids: Array.from(response.promptIds),
    response_ids: Array.from(choice.ids),
    loss_mask: Array.from(choice.ids, () => 1 as const),
    prompt_messages: prompt.messages,
    response_messages: [toWireMessage(choice.message)],
    tools: prompt.tools,
    finish_reason: choice.finishReason === 'tool-calls' ? 'tool_calls' : choice.finishReason,
    response_logprobs: Array.from(choice.logprobs, (value) => (Number.isNaN(value) ? null : value)),
    reward: null,
    metadata: {
      builder: 'per_request',
      session_id: session.id,
      turn_id: turn.id,
      turn_index: turn.index,
      choice: choice.index,
      grade: response.grade,
      dialect: turn.dialect,
      weight_version: response.weightVersion ?? null,
      weight_spans: choice.weightSpans ?? null,
      model: response.model,
      started_at: turn.startedAt,
      ended_at: turn.endedAt,
      session_complete: session.complete,
    },
  }
}

function toWireMessage(message: AssistantMessage): Record<string, unknown> {
  const text = textOf(message)
  return {
    role: 'assistant',
    content: text === '' && message.toolCalls.length > 0 ? null : text,
    ...(message.reasoning === undefined ? {} : { reasoning_content: message.reasoning }),
    ...(message.toolCalls.length === 0
      ? {}
      : {
          tool_calls: message.toolCalls.map((call) => ({
            id: call.id,
            type: 'function',
            function: { name: call.name, arguments: call.arguments },
          })),
        }),
  }
}
