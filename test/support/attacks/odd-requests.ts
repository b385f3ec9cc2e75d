import type { Attack } from './attack.ts'
import { expect } from 'vitest'
import { expectGraded, partsOf } from './expectations.ts'

type Message = Record<string, unknown>

const question: Message = { role: 'user', content: 'odd request' }
const call = { id: 'x', type: 'function', function: { name: 'f', arguments: '{' } }

/** Histories that no harness sends, but that the format of Chat Completions allows or nearly allows. */
const HISTORIES: readonly Message[][] = [
  [{ role: 'user', content: '' }],
  [{ role: 'user', content: [] }],
  [{ role: 'user', content: [{ type: 'text', text: '' }] }],
  [{ role: 'user', content: '\u0000\u0001\uFFFE\uFFFF\u202E odd request' }],
  [{ role: 'system', content: 'a' }, { role: 'system', content: 'b' }, question],
  [question, { role: 'system', content: 'late' }],
  [{ role: 'developer', content: 'odd' }, question],
  [question, { role: 'assistant', content: null }, question],
  [question, { role: 'assistant', content: '', tool_calls: [] }, question],
  [question, { role: 'assistant', content: null, tool_calls: [call, call] }, question],
  [question, { role: 'tool', tool_call_id: 'nothing', content: 'odd' }],
  [
    question,
    { role: 'assistant', content: null, tool_calls: [call] },
    { role: 'tool', tool_call_id: 'x', content: [] },
  ],
  [question, { role: 'assistant', content: [{ type: 'refusal', refusal: 'no' }] }, question],
  [question, { role: 'assistant', content: 'x', reasoning_content: 7, audio: { id: 'y' } }, question],
  [question, { role: 'assistant', content: 'fine', name: '__proto__', prefix: true }, question],
  [question, { role: 'function', name: 'f', content: 'odd' }],
  [{ role: 'user', content: 'odd request', name: '\u001b[31m', __proto__extra: {} }],
  [{ role: 'assistant', content: 'first of all' }, question],
  Array.from({ length: 300 }, (_, index) => ({ role: index % 2 === 0 ? 'user' : 'assistant', content: 'fine' })).concat({ role: 'user', content: 'odd request' }), // prettier-ignore
]

const tool = (parameters: unknown, name = 'f') => ({ type: 'function', function: { name, parameters } })

/** Additional fields of a plain question. */
const FIELDS: readonly Record<string, unknown>[] = [
  { tools: [tool({})], tool_choice: 'none' },
  { tools: [tool({ $ref: '#' }), tool({ $ref: '#' })] },
  { tools: [tool(null, 'x'.repeat(64))] },
  { tools: [tool({ type: 'object', properties: { __proto__x: { enum: [] } } })], parallel_tool_calls: 'yes' },
  { n: 2 },
  { stop: ['fine', '', '\n'], stream: true, stream_options: { include_usage: 'x' } },
  { temperature: -0, top_p: 1, seed: Number.MAX_SAFE_INTEGER, user: 'x'.repeat(5000), metadata: { a: {} } },
  { max_tokens: 1, max_completion_tokens: 2 },
  { logprobs: true, top_logprobs: 20, stream: true },
]

/** Bodies for the other APIs. */
const OTHERS: readonly { path: string; body: unknown }[] = [
  { path: '/messages', body: { model: 'tiny', max_tokens: 4, system: [], messages: [{ role: 'user', content: [] }] } },
  {
    path: '/messages',
    body: {
      model: 'tiny',
      max_tokens: 4,
      messages: [
        { role: 'user', content: 'odd request' },
        { role: 'assistant', content: [{ type: 'thinking', thinking: 'x', signature: 'forged' }, { type: 'tool_use', id: 'a', name: 'b', input: { x: [] } }] }, // prettier-ignore
        {
          role: 'user',
          content: [{ type: 'tool_result', tool_use_id: 'other', content: [{ type: 'text', text: '' }] }],
        },
      ],
    },
  },
  { path: '/responses', body: { model: 'tiny', input: [] } },
  {
    path: '/responses',
    body: {
      model: 'tiny',
      previous_response_id: 'resp_of_another_session',
      input: [
        { type: 'reasoning', id: 'r', summary: [], encrypted_content: 'forged' },
        { type: 'function_call', call_id: 'x', name: 'f', arguments: '{' },
        { type: 'function_call_output', call_id: 'y', output: '' },
        { type: 'item_reference', id: 'z' },
        { role: 'user', content: 'odd request' },
      ],
    },
  },
]

const GOOGLE = {
  contents: [
    { parts: [{ text: 'odd request' }, { thoughtSignature: 'Zm9yZ2Vk', text: 'x' }] },
    { role: 'model', parts: [{ functionCall: { name: 'f', args: null } }] },
    { role: 'user', parts: [{ functionResponse: { name: 'g', response: [] } }] },
  ],
}

/** One body per line: JSON on one line has no line breaks, and the bodies of this file have no single quotes. */
function linesOf(bodies: readonly unknown[]): string {
  return bodies.map((body) => JSON.stringify(body)).join('\n')
}

function toScript(): string {
  const chat = [
    ...HISTORIES.map((messages) => ({ model: 'tiny', max_tokens: 4, messages })),
    ...FIELDS.map((fields) => ({ model: 'tiny', messages: [question], ...fields })),
  ]
  const others = OTHERS.map(
    ({ path, body }) => `printf '%s' '${JSON.stringify(body)}' | send POST "$base${path}" | status`,
  )
  return `ask words-of-odd-requests | status
while IFS= read -r body; do printf '%s' "$body" | send POST "$base/chat/completions" | status; done <<'END'
${linesOf(chat)}
END
${others.join('\n')}
printf '%s' '${JSON.stringify(GOOGLE)}' | send POST "\${base%/v1}/v1beta/models/tiny:generateContent" | status`
}

export const oddRequestAttacks: readonly Attack[] = [
  {
    id: 'odd-requests',
    title: 'The agent sends requests of odd forms, so that building or grading its session fails',
    defence: 'further',
    target: 'reward',
    async run(range) {
      const { url } = range.service
      const session = await range.run(toScript(), {
        evaluator: {
          strategy: 'weighted',
          config: {
            parts: [
              { name: 'http', strategy: 'http', config: { url: `${url}/score` } },
              {
                name: 'judge',
                strategy: 'judge',
                config: { base_url: `${url}/judge`, model: 'judge', rubric: 'Good?' },
              },
            ],
          },
        },
      })
      expect(session.stdout).not.toMatch(/^HTTP\/1\.1 5\d\d /m)
      expectGraded(session)
      expect(Object.keys(partsOf(session))).toEqual(['http', 'judge'])
    },
  },
]
