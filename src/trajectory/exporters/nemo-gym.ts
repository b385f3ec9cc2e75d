import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import {
  answeredCall,
  chatCalls,
  chatParts,
  chatReasoning,
  chatText,
  type ChatMessage,
  type ChatPart,
} from '../../model/chat-message.ts'
import type { Sample, SampleCall } from '../../model/sample.ts'
import { lacksLogprob, speechOf } from '../../model/sample-facts.ts'
import { groupNumber } from '../sample-fields.ts'
import { trainedCallFacts } from '../sampling-fields.ts'
import type { ScoredSession } from '../score-session.ts'
import type { Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('nemo_gym'),
  agent: z.string().default('polar').describe('Name in agent_ref: the agent server that the rows stand for'),
})

/**
 * NeMo Gym's result rows, one a sample: each call's prompt goes on from all that came before it, which NeMo RL insists on.
 * A result has a reward, so samples that were not graded are left out, as are those whose trained tokens lack a log
 * probability.
 */
export const nemoGym: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: ({ agent }) => ({
    name: 'nemo_gym',
    extension: 'jsonl',
    isAppendable: true,
    needs: ['reward', 'logprobs'],
    open(start) {
      let index = start?.samples ?? 0
      return {
        *add(session) {
          for (const sample of session.samples()) {
            const rolloutIndex = index++
            if (sample.reward !== undefined && !lacksLogprob(sample)) {
              yield* writeResult(session, sample, rolloutIndex, agent)
            }
          }
        },
        end: () => [],
      }
    },
  }),
}

type Item = Record<string, unknown>

/** Item by item: with every call's whole prompt in it, a row may be longer than a string can be. */
function* writeResult(session: ScoredSession, sample: Sample, rolloutIndex: number, agent: string): Generator<string> {
  const messages = sample.messages()
  const speech = [...speechOf(sample, messages)]
  const names = itemNames()
  const tools = (messages.tools ?? []).map(toTool)
  const input = speech.filter(({ isPrompt }) => isPrompt).flatMap(({ message }) => toItems(message, names))
  const row = {
    agent_ref: { type: 'responses_api_agents', name: agent },
    responses_create_params: { input, tools, ...toCreateParams(sample) },
    reward: sample.reward,
    ...(sample.components === undefined ? {} : { reward_components: sample.components }),
    _ng_task_index: groupNumber(sample.group ?? sample.sessionId),
    _ng_rollout_index: rolloutIndex,
    _ng_rollout_id: sample.id.replaceAll('/', '.'),
    polar: toOwnFields(sample),
  }
  yield `${unclosed(row)},"response":${unclosed(toResponse(session, sample, tools))},"output":[`
  let comma = ''
  for (const { message, calls } of speech.filter(({ isPrompt }) => !isPrompt)) {
    const trained = calls.filter(({ isTrained }) => isTrained)
    const items = toItems(message, names)
    while (items.length < trained.length) items.unshift(toMessageItem('', names))
    for (const item of withTokens(items, sample, trained)) {
      yield comma + JSON.stringify(item)
      comma = ','
    }
  }
  yield ']}}\n'
}

function unclosed(value: Item): string {
  return JSON.stringify(value).slice(0, -1)
}

function toResponse({ built }: ScoredSession, sample: Sample, tools: readonly unknown[]): Item {
  const first = built.graph.nodes.find(({ key }) => key === sample.calls[0]?.key)
  return {
    id: sample.id,
    object: 'response',
    created_at: Math.floor((first?.turn.startedAt ?? 0) / 1000),
    model: first?.response.model ?? '',
    tools,
    // Obligatory in a response; these are what NeMo Gym takes for granted when nothing was asked for.
    tool_choice: 'auto',
    parallel_tool_calls: true,
    ...(sample.finishReason === 'length' ? { incomplete_details: { reason: 'max_output_tokens' } } : {}),
  }
}

/** The parameters that a Responses request has a field for, where all trained calls agree. */
function toCreateParams({ calls }: Sample): Item {
  const trained = calls.filter(({ isTrained }) => isTrained).map(({ sampling }) => sampling)
  const shared = (name: 'temperature' | 'topP'): number | undefined => {
    const value = trained[0]?.[name]
    return trained.every((sampling) => sampling?.[name] === value) ? value : undefined
  }
  const [temperature, topP] = [shared('temperature'), shared('topP')]
  return {
    ...(temperature === undefined ? {} : { temperature }),
    ...(topP === undefined ? {} : { top_p: topP }),
  }
}

/** What NeMo Gym has no field for; it passes on what it does not know. */
function toOwnFields(sample: Sample): Item {
  return {
    sample_id: sample.id,
    session_id: sample.sessionId,
    label: sample.label,
    weight: sample.weight,
    ...(sample.group === undefined ? {} : { group_id: sample.group }),
    ...(sample.advantage === undefined ? {} : { advantage: sample.advantage }),
    calls: trainedCallFacts(sample),
  }
}

/** The token fields of each trained call stand on one item, the last ones of the message; NeMo RL trains no other items. */
function withTokens(items: Item[], { ids, logprobs }: Sample, trained: readonly SampleCall[]): Item[] {
  return items.map((item, i) => {
    const call = trained[i - items.length + trained.length]
    if (call === undefined) return item
    return {
      ...item,
      prompt_token_ids: Array.from(ids.subarray(0, call.from)),
      generation_token_ids: Array.from(ids.subarray(call.from, call.to)),
      generation_log_probs: Array.from(logprobs.subarray(call.from, call.to)),
    }
  })
}

// --- Responses items --------------------------------------------------------------------------------------------------

type ItemNames = (prefix: string) => string

function itemNames(): ItemNames {
  let count = 0
  return (prefix) => `${prefix}_${count++}`
}

function toItems(message: ChatMessage, names: ItemNames): Item[] {
  const { role, content } = message
  if (role === 'assistant') return toAssistantItems(message, names)
  if (role === 'tool') {
    return [{ type: 'function_call_output', call_id: answeredCall(message) ?? '', output: toOutput(message) }]
  }
  return [
    {
      type: 'message',
      role: ['system', 'developer'].includes(role) ? role : 'user',
      content: typeof content === 'string' ? content : chatParts(content).map(toInputPart),
    },
  ]
}

function toAssistantItems(message: ChatMessage, names: ItemNames): Item[] {
  const reasoning = chatReasoning(message)
  const calls = chatCalls(message)
  const text = chatText(message)
  return [
    ...(reasoning === undefined
      ? []
      : [{ type: 'reasoning', id: names('rs'), summary: [{ type: 'summary_text', text: reasoning }] }]),
    ...(text === '' && calls.length > 0 ? [] : [toMessageItem(text, names)]),
    ...calls.map((call) => ({
      type: 'function_call',
      id: call.id,
      call_id: call.id,
      name: call.name,
      arguments: call.arguments,
      status: 'completed',
    })),
  ]
}

function toMessageItem(text: string, names: ItemNames): Item {
  return {
    type: 'message',
    role: 'assistant',
    id: names('msg'),
    status: 'completed',
    content: [{ type: 'output_text', text, annotations: [] }],
  }
}

/** NeMo Gym knows tool results as one text; parts of another kind stay readable as JSON. */
function toOutput(message: ChatMessage): string {
  const parts = chatParts(message.content)
  return parts.every(({ type }) => type === 'text') ? chatText(message) : JSON.stringify(message.content)
}

function toInputPart(part: ChatPart): unknown {
  switch (part.type) {
    case 'text':
      return { type: 'input_text', text: part.text }
    case 'image':
      return { type: 'input_image', image_url: part.url, detail: part.detail ?? 'auto' }
    case 'other':
      return part.wire
  }
}

/** Chat Completions nests a function in its tool, Responses does not; tools that are no functions pass as they are. */
function toTool(tool: unknown): unknown {
  const called = (tool as { function?: Item } | null)?.function
  if (called === undefined) return tool
  return { type: 'function', ...called, parameters: called['parameters'] ?? null, strict: called['strict'] ?? null }
}
