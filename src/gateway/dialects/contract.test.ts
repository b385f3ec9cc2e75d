import { describeDialect, type ReadAnswer } from './dialect.contract.ts'
import { anthropicMessages } from './anthropic-messages.ts'
import { googleGenerate } from './google-generate.ts'
import { openaiChat } from './openai-chat.ts'
import { openaiResponses } from './openai-responses.ts'

type Json = Record<string, any> // oxlint-disable-line typescript/no-explicit-any -- a client's loose view of an answer

const tools = ['bash', 'read_file']

describeDialect({
  dialect: openaiChat,
  showsReasoning: true,
  body: (stream) => ({
    routePath: '/v1/chat/completions',
    value: {
      model: 'm',
      messages: [{ role: 'user', content: 'hi' }],
      tools: tools.map((name) => ({ type: 'function', function: { name, parameters: { type: 'object' } } })),
      stream,
    },
  }),
  readStream(data) {
    const answer: ReadAnswer = { text: '', reasoning: '', calls: [] }
    const args: string[] = []
    for (const chunk of data.filter((text) => text !== '[DONE]').map((text) => JSON.parse(text) as Json)) {
      const [choice] = chunk['choices'] as Json[]
      if (choice === undefined) continue
      answer.text += choice['delta'].content ?? ''
      answer.reasoning += choice['delta'].reasoning_content ?? ''
      for (const call of choice['delta'].tool_calls ?? []) {
        if (call.id) answer.calls[call.index] = { name: call.function.name, arguments: undefined }
        args[call.index] = (args[call.index] ?? '') + (call.function.arguments ?? '')
      }
      if (choice['finish_reason']) answer.finished = choice['finish_reason'].replace('_', '-')
    }
    return {
      ...answer,
      calls: answer.calls.map((call, i) => ({ ...call, arguments: JSON.parse(args[i] ?? '') as unknown })),
    }
  },
  readWhole(body) {
    const [choice] = (body as Json)['choices']
    return {
      text: choice.message.content ?? '',
      reasoning: choice.message.reasoning_content ?? '',
      calls: (choice.message.tool_calls ?? []).map((call: Json) => ({
        name: call['function'].name,
        arguments: JSON.parse(call['function'].arguments) as unknown,
      })),
      finished: choice.finish_reason.replace('_', '-'),
    }
  },
  echo: (whole) => ({ model: 'm', messages: [{ role: 'user', content: 'hi' }, (whole as Json)['choices'][0].message] }),
})

describeDialect({
  dialect: anthropicMessages,
  showsReasoning: true,
  body: (stream) => ({
    routePath: '/v1/messages',
    value: {
      model: 'm',
      max_tokens: 100,
      messages: [{ role: 'user', content: 'hi' }],
      tools: tools.map((name) => ({ name, input_schema: { type: 'object' } })),
      stream,
    },
  }),
  readStream(data) {
    const answer: ReadAnswer = { text: '', reasoning: '', calls: [] }
    const blocks: { type: string; name: string; json: string }[] = []
    for (const event of data.map((text) => JSON.parse(text) as Json)) {
      if (event['type'] === 'content_block_start') blocks[event['index']] = { ...event['content_block'], json: '' }
      if (event['type'] === 'content_block_delta') {
        answer.text += event['delta'].text ?? ''
        answer.reasoning += event['delta'].thinking ?? ''
        const block = blocks[event['index']]
        if (block) block.json += event['delta'].partial_json ?? ''
      }
      if (event['type'] === 'message_delta')
        answer.finished = event['delta'].stop_reason === 'tool_use' ? 'tool-calls' : 'stop'
    }
    const calls = blocks.filter((block) => block.type === 'tool_use')
    return {
      ...answer,
      calls: calls.map(({ name, json }) => ({ name, arguments: JSON.parse(json || '{}') as unknown })),
    }
  },
  readWhole(body) {
    const blocks = (body as Json)['content'] as Json[]
    const join = (type: string, field: string): string =>
      blocks.map((block) => (block['type'] === type ? block[field] : '')).join('')
    return {
      text: join('text', 'text'),
      reasoning: join('thinking', 'thinking'),
      calls: blocks
        .filter((block) => block['type'] === 'tool_use')
        .map((block) => ({ name: block['name'], arguments: block['input'] as unknown })),
      finished: (body as Json)['stop_reason'] === 'tool_use' ? 'tool-calls' : 'stop',
    }
  },
  echo: (whole) => ({
    model: 'm',
    max_tokens: 100,
    messages: [
      { role: 'user', content: 'hi' },
      { role: 'assistant', content: (whole as Json)['content'] },
    ],
  }),
})

const googleBody = {
  contents: [{ role: 'user', parts: [{ text: 'hi' }] }],
  tools: [{ functionDeclarations: tools.map((name) => ({ name, parametersJsonSchema: { type: 'object' } })) }],
  generationConfig: { thinkingConfig: { includeThoughts: true } },
}

function readCandidate(candidates: readonly Json[]): ReadAnswer {
  const answer: ReadAnswer = { text: '', reasoning: '', calls: [] }
  for (const candidate of candidates) {
    for (const part of (candidate['content']?.parts ?? []) as Json[]) {
      if (part['functionCall'])
        answer.calls.push({ name: part['functionCall'].name, arguments: part['functionCall'].args })
      else if (part['thought']) answer.reasoning += part['text'] ?? ''
      else answer.text += part['text'] ?? ''
    }
    if (candidate['finishReason']) answer.finished = answer.calls.length > 0 ? 'tool-calls' : 'stop'
  }
  return answer
}

describeDialect({
  dialect: googleGenerate,
  showsReasoning: true,
  body: (stream) => ({
    routePath: `/v1beta/models/*:${stream ? 'streamGenerateContent' : 'generateContent'}`,
    query: stream ? 'alt=sse' : '',
    value: googleBody,
  }),
  readStream: (data) =>
    readCandidate(data.flatMap((text) => ((JSON.parse(text) as Json)['candidates'] ?? []) as Json[])),
  readWhole: (body) => readCandidate((body as Json)['candidates'] as Json[]),
  echo: (whole) => ({ ...googleBody, contents: [...googleBody.contents, (whole as Json)['candidates'][0].content] }),
})

const responsesBody = {
  model: 'm',
  input: [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: 'hi' }] }],
  tools: tools.map((name) => ({ type: 'function', name, parameters: { type: 'object' } })),
}

function readItems(items: readonly Json[], status: string | undefined): ReadAnswer {
  const texts = (kind: string): string =>
    items
      .flatMap((item) =>
        item['type'] === kind ? (item['content'] as Json[]).map((part) => part['text'] as string) : [],
      )
      .join('')
  const calls = items.filter((item) => item['type'] === 'function_call')
  return {
    text: texts('message'),
    reasoning: texts('reasoning'),
    calls: calls.map((item) => ({ name: item['name'], arguments: JSON.parse(item['arguments']) as unknown })),
    ...(status === 'completed' ? { finished: calls.length > 0 ? ('tool-calls' as const) : ('stop' as const) } : {}),
  }
}

describeDialect({
  dialect: openaiResponses,
  showsReasoning: true,
  body: (stream) => ({ routePath: '/v1/responses', value: { ...responsesBody, stream } }),
  readStream(data) {
    const events = data.map((text) => JSON.parse(text) as Json)
    const items = events
      .filter((event) => event['type'] === 'response.output_item.done')
      .map((event) => event['item'] as Json)
    const last = events.find((event) => event['type'] === 'response.completed')
    return readItems(items, last?.['response'].status)
  },
  readWhole: (body) => readItems((body as Json)['output'] as Json[], (body as Json)['status']),
  echo: (whole) => ({ ...responsesBody, input: [...responsesBody.input, ...(whole as Json)['output']] }),
})
