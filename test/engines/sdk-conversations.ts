import Anthropic from '@anthropic-ai/sdk'
import { GoogleGenAI, type Content, type Part } from '@google/genai'
import OpenAI from 'openai'

export const dialectNames = ['chat', 'responses', 'anthropic', 'google'] as const
export type DialectName = (typeof dialectNames)[number]

export interface ConversationOptions {
  baseUrl: string
  key: string
  model: string
  stream: boolean
  /** Limit of each answer. */
  maxTokens: number
}

/** A conversation through the SDK of a vendor. It sends back every answer as the SDK returned it. */
export interface Conversation {
  /** Sends a user message, or the results of the calls of the last answer. Returns the number of tool calls. */
  send(turn: { user: string } | { result: string }): Promise<number>
}

const TOOL = { name: 'bash', description: 'Runs a command.' }
const parameters = { type: 'object' as const, properties: { command: { type: 'string' } }, required: ['command'] }
const SAMPLING = { temperature: 1, top_p: 1 }

export const conversations: Readonly<Record<DialectName, (options: ConversationOptions) => Conversation>> = {
  chat({ baseUrl, key, model, stream, maxTokens }) {
    const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: key, maxRetries: 0 })
    const tools: OpenAI.ChatCompletionTool[] = [{ type: 'function', function: { ...TOOL, parameters } }]
    const messages: OpenAI.ChatCompletionMessageParam[] = []
    let calls: OpenAI.ChatCompletionMessageToolCall[] = []
    return {
      async send(turn) {
        if ('user' in turn) messages.push({ role: 'user', content: turn.user })
        else {
          messages.push(...calls.map(({ id }) => ({ role: 'tool' as const, tool_call_id: id, content: turn.result })))
        }
        const body = { model, messages, tools, ...SAMPLING, max_tokens: maxTokens }
        const answer = stream
          ? await client.chat.completions.stream(body).finalChatCompletion()
          : await client.chat.completions.create(body)
        const { content, tool_calls } = answer.choices[0]!.message
        calls = tool_calls ?? []
        messages.push({ role: 'assistant', content, ...(calls.length === 0 ? {} : { tool_calls: calls }) })
        return calls.length
      },
    }
  },

  responses({ baseUrl, key, model, stream, maxTokens }) {
    const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: key, maxRetries: 0 })
    const tools = [{ type: 'function' as const, ...TOOL, parameters, strict: false }]
    const input: OpenAI.Responses.ResponseInput = []
    let calls: OpenAI.Responses.ResponseFunctionToolCall[] = []
    return {
      async send(turn) {
        if ('user' in turn) input.push({ role: 'user', content: turn.user })
        else {
          const type = 'function_call_output' as const
          input.push(...calls.map(({ call_id }) => ({ type, call_id, output: turn.result })))
        }
        const body = { model, input, tools, ...SAMPLING, max_output_tokens: maxTokens }
        const answer = stream
          ? await client.responses.stream(body).finalResponse()
          : await client.responses.create(body)
        input.push(...(answer.output as OpenAI.Responses.ResponseInputItem[]))
        calls = answer.output.flatMap((item) => (item.type === 'function_call' ? [item] : []))
        return calls.length
      },
    }
  },

  anthropic({ baseUrl, key, model, stream, maxTokens }) {
    const client = new Anthropic({ baseURL: baseUrl, apiKey: key, maxRetries: 0 })
    const tools = [{ ...TOOL, input_schema: parameters }]
    const messages: Anthropic.MessageParam[] = []
    let calls: Anthropic.ToolUseBlock[] = []
    return {
      async send(turn) {
        const results = calls.map(({ id }) => ({
          type: 'tool_result' as const,
          tool_use_id: id,
          content: 'result' in turn ? turn.result : '',
        }))
        messages.push({ role: 'user', content: 'user' in turn ? turn.user : results })
        const body = { model, messages, tools, max_tokens: maxTokens, ...SAMPLING }
        const answer = stream ? await client.messages.stream(body).finalMessage() : await client.messages.create(body)
        messages.push({ role: 'assistant', content: answer.content })
        calls = answer.content.filter((block) => block.type === 'tool_use')
        return calls.length
      },
    }
  },

  google({ baseUrl, key, model, stream, maxTokens }) {
    const client = new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl } })
    const tools = [{ functionDeclarations: [{ ...TOOL, parametersJsonSchema: parameters }] }]
    const config = { tools, temperature: 1, topP: 1, maxOutputTokens: maxTokens }
    const contents: Content[] = []
    let calls: NonNullable<Part['functionCall']>[] = []
    return {
      async send(turn) {
        const results = calls.map(({ id, name }) => ({
          functionResponse: { id, name, response: { output: 'result' in turn ? turn.result : '' } },
        }))
        contents.push({ role: 'user', parts: 'user' in turn ? [{ text: turn.user }] : results })
        const request = { model, contents, config }
        const chunks = stream
          ? await Array.fromAsync(await client.models.generateContentStream(request))
          : [await client.models.generateContent(request)]
        const parts = chunks.flatMap((chunk) => chunk.candidates?.[0]?.content?.parts ?? [])
        contents.push({ role: 'model', parts })
        calls = parts.flatMap((part) => part.functionCall ?? [])
        return calls.length
      },
    }
  },
}

/** Sends `turns` messages: the results of tool calls after an answer with calls, else the next user message. */
export async function converse(conversation: Conversation, turns: number, opening: string): Promise<void> {
  let calls = 0
  for (let i = 0; i < turns; i++) {
    const user = i === 0 ? opening : `${QUESTIONS[i % QUESTIONS.length]} (${i})`
    calls = await conversation.send(calls > 0 ? { result: `a.txt\nb ${i}.txt\n` } : { user })
  }
}

const QUESTIONS = ['And then?', 'Tell me more 🐙', '为什么？', 'Which file is "newer"?', 'Thanks, go on.']
