import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { toAnswerShape, type AnswerShape } from './wire-shape.ts'

/** Script that both engines play. */
export const WIRE_SCRIPT = `
scenarios:
  plain: [{ text: "Paris is the capital of France." }]
  tools:
    - text: "I look first."
      tool_calls: [{ name: bash, arguments: { command: "ls -la" } }]
  stop: [{ text: "one two three STOP four five" }]
default: { text: "It is sunny." }
`

interface Exchange {
  method?: 'GET' | 'POST'
  path: string
  /** Text is sent as it is. */
  body?: Readonly<Record<string, unknown>> | string
}

const user = (content: string) => [{ role: 'user', content }]
const tools = [
  {
    type: 'function',
    function: { name: 'bash', description: 'Runs bash', parameters: { type: 'object', properties: {} } },
  },
]
const ids = { return_token_ids: true, logprobs: true, top_logprobs: 0 }
const stream = { stream: true, stream_options: { include_usage: true } }
const CHAT = '/v1/chat/completions'
const plain = { messages: user('SCRIPT:plain'), max_tokens: 40 }

/** Requests that are sent to the real engine and to the tiny engine. `model` is added to bodies without one. */
export const exchanges: Readonly<Record<string, Exchange>> = {
  health: { method: 'GET', path: '/health' },
  version: { method: 'GET', path: '/version' },
  models: { method: 'GET', path: '/v1/models' },
  'unknown path': { method: 'GET', path: '/v1/nothing' },
  'wrong method': { method: 'GET', path: CHAT },
  chat: { path: CHAT, body: plain },
  'chat with ids': { path: CHAT, body: { ...plain, ...ids } },
  'chat with alternatives': { path: CHAT, body: { ...plain, ...ids, top_logprobs: 2 } },
  'chat stream': { path: CHAT, body: { ...plain, stream: true } },
  'chat stream with ids': { path: CHAT, body: { ...plain, ...ids, ...stream } },
  'chat with tools': { path: CHAT, body: { messages: user('SCRIPT:tools'), tools, max_tokens: 80, ...ids } },
  'chat stream with tools': {
    path: CHAT,
    body: { messages: user('SCRIPT:tools'), tools, max_tokens: 80, ...ids, ...stream },
  },
  'chat with two choices': { path: CHAT, body: { ...plain, ...ids, n: 2 } },
  'chat with a stop string': {
    path: CHAT,
    body: { messages: user('SCRIPT:stop'), max_tokens: 40, stop: ['STOP'], ...ids },
  },
  'chat with a limit': { path: CHAT, body: { ...plain, ...ids, max_tokens: 3 } },
  'chat with a prompt of ids': {
    path: CHAT,
    body: { ...plain, ...ids, kv_transfer_params: { prompt_token_ids: [1, 320, 275, 201, 42, 392, 338, 2, 201] } },
  },
  'chat render': { path: `${CHAT}/render`, body: plain },
  completion: { path: '/v1/completions', body: { prompt: 'Hello there', max_tokens: 4 } },
  'completion stream': { path: '/v1/completions', body: { prompt: 'Hello there', max_tokens: 4, ...stream } },
  'completion of ids': {
    path: '/v1/completions',
    body: { prompt: [42, 392, 338], max_tokens: 4, return_token_ids: true, logprobs: 0, prompt_logprobs: 0 },
  },
  'tokenize a chat': { path: '/tokenize', body: { messages: user('hi'), tools } },
  'tokenize a text': { path: '/tokenize', body: { prompt: 'hi there', return_token_strs: true } },
  detokenize: { path: '/detokenize', body: { tokens: [42, 392, 338] } },
  'unknown model': { path: CHAT, body: { ...plain, model: 'nothing' } },
  'no messages': { path: CHAT, body: { max_tokens: 3 } },
  'messages of a wrong type': { path: CHAT, body: { messages: 'hi' } },
  'no JSON': { path: CHAT, body: '{"messages": [' },
  'prompt over the context': { path: CHAT, body: { messages: user('word '.repeat(40_000)) } },
  'limit over the context': { path: CHAT, body: { ...plain, max_tokens: 1_000_000 } },
  'negative temperature': { path: CHAT, body: { ...plain, temperature: -1 } },
  'too many alternatives': { path: CHAT, body: { ...plain, logprobs: true, top_logprobs: 50 } },
  'tool arguments that are no JSON': {
    path: CHAT,
    body: {
      ...plain,
      messages: [
        ...user('SCRIPT:plain'),
        {
          role: 'assistant',
          tool_calls: [{ id: 'a', type: 'function', function: { name: 'bash', arguments: '{"a' } }],
        },
        { role: 'tool', tool_call_id: 'a', content: 'x' },
      ],
    },
  },
}

/** Sends every request, one after the other. */
export async function recordShapes(url: string, model: string): Promise<RecordedShapes> {
  const shapes: Record<string, AnswerShape> = {}
  for (const [name, { method = 'POST', path, body }] of Object.entries(exchanges)) {
    const answer = await fetch(url + path, {
      method,
      headers: { 'content-type': 'application/json' },
      body: body === undefined || typeof body === 'string' ? body : JSON.stringify({ model, ...body }),
    })
    shapes[name] = toAnswerShape(answer.status, answer.headers.get('content-type') ?? '', await answer.text())
  }
  return shapes
}

export type RecordedShapes = Readonly<Record<string, AnswerShape>>

/** The recorded answers of a real engine. To record them again, delete the file and run `npm run test:engines`. */
function recordingOf(environment: string): string {
  return fileURLToPath(new URL(`recorded/${environment}.json`, import.meta.url))
}

export function readRecordedShapes(environment: string): RecordedShapes | undefined {
  const file = recordingOf(environment)
  return existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as RecordedShapes) : undefined
}

export function writeRecordedShapes(environment: string, shapes: RecordedShapes): void {
  const file = recordingOf(environment)
  mkdirSync(dirname(file), { recursive: true })
  writeFileSync(file, `${JSON.stringify(shapes, null, 1)}\n`)
}
