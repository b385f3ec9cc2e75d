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
import { lacksLogprob, sampleMessages } from '../../model/sample-facts.ts'
import { groupNumber } from '../sample-fields.ts'
import { sampleFacts } from '../sampling-fields.ts'
import type { ScoredSession } from '../score-session.ts'
import type { Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('nemo_gym'),
  agent: z.string().default('polar').describe('agent_ref.name: the agent server of the rows'),
})

/**
 * NeMo Gym's result rows, one per sample: each call's prompt continues all tokens before it, as NeMo RL requires. Samples
 * without a reward or without a log probability of every trained token are left out.
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

/** Yields a row item by item: with the whole prompt of every call, a row may exceed the maximum length of a string. */
function* writeResult(session: ScoredSession, sample: Sample, rolloutIndex: number, agent: string): Generator<string> {
  const messages = sample.messages()
  const speech = [...sampleMessages(sample, messages)]
  const names = itemNames()
  const tools = (messages.tools ?? []).map(toTool)
  const input = speech.filter(({ isPrompt }) => isPrompt).flatMap(({ message }) => toItems(message, names))
  const row = {
    agent_ref: { type: 'responses_api_agents', name: agent },
    responses_create_params: { input, tools, ...toCreateParams(sample) },
    reward: sample.reward,
    reward_components: sample.components,
    _ng_task_index: groupNumber(sample.group ?? sample.sessionId),
    _ng_rollout_index: rolloutIndex,
    _ng_rollout_id: sample.id.replaceAll('/', '.'),
    // NeMo Gym passes unknown fields on.
    polar: sampleFacts(sample),
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
    // Required fields of a response; the values are NeMo Gym's defaults.
    tool_choice: 'auto',
    parallel_tool_calls: true,
    ...(sample.finishReason === 'length' ? { incomplete_details: { reason: 'max_output_tokens' } } : {}),
  }
}

/** Returns the sampling parameters that a Responses request has a field for, if all trained calls agree. */
function toCreateParams({ calls }: Sample): Item {
  const trained = calls.filter(({ isTrained }) => isTrained).map(({ sampling }) => sampling)
  const shared = (name: 'temperature' | 'topP'): number | undefined => {
    const value = trained[0]?.[name]
    return trained.every((sampling) => sampling?.[name] === value) ? value : undefined
  }
  return { temperature: shared('temperature'), top_p: shared('topP') }
}

/** Puts the token fields of each trained call on one of the last items of the message. NeMo RL trains only such items. */
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

/** NeMo Gym requires a tool result to be one text. Other parts are written as JSON. */
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

/** Chat Completions nests a function in its tool, Responses does not. Tools that are not functions stay unchanged. */
function toTool(tool: unknown): unknown {
  const called = (tool as { function?: Item } | null)?.function
  if (called === undefined) return tool
  return { type: 'function', ...called, parameters: called['parameters'] ?? null, strict: called['strict'] ?? null }
}
