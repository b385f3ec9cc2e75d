import { readFile } from 'node:fs/promises'
import { beforeAll, describe, expect, test } from 'vitest'
import { ChatTemplateError, createChatTemplate, loadChatTemplate } from './chat-template.ts'
import type { ChatPrompt, ChatTemplate } from './chat-template.ts'
import { embeddedModelFolder } from './model-package.ts'
import { parsePythonJson } from './python-json.ts'
import { loadTokenizer } from './tokenizer.ts'

interface GoldenCase {
  name: string
  /** Request body as text, which keeps the notation of numbers. */
  body: string
  text: string
  ids: number[]
}

const golden = JSON.parse(
  await readFile(new URL('golden/chat-template.golden.json', import.meta.url), 'utf8'),
) as GoldenCase[]

let template: ChatTemplate
beforeAll(async () => {
  const folder = embeddedModelFolder()
  template = await loadChatTemplate(folder, await loadTokenizer(folder))
})

describe('the embedded model’s template renders the same text and ids as Python', () => {
  test.each(golden)('$name', ({ body, text, ids }) => {
    const prompt = toPrompt(body)
    expect(template.toText(prompt)).toBe(text)
    expect([...template.tokenise(prompt)]).toEqual(ids)
  })
})

test('toText() names the field when arguments are not JSON', () => {
  const calls = [{ function: { name: 'f', arguments: '{"a": ' } }]
  const messages = [
    { role: 'user', content: 'x' },
    { role: 'assistant', content: '', tool_calls: calls },
  ]
  expect(refusalOf({ messages })).toMatchObject({ param: 'messages.1.tool_calls.0.function.arguments' })
})

test('toText() rejects content that the model cannot read', () => {
  const image = [{ type: 'image_url', image_url: { url: 'data:,' } }]
  expect(refusalOf({ messages: [] })).toMatchObject({ param: 'messages' })
  expect(refusalOf({ messages: [{ content: 'x' }] })).toMatchObject({ param: 'messages.0.role' })
  expect(refusalOf({ messages: [{ role: 'user', content: image }] }).message).toContain('image_url')
  expect(refusalOf({ messages: [{ role: 'user', content: 5 }] })).toMatchObject({ param: 'messages.0.content' })
  expect(refusalOf({ messages: [{ role: 'assistant', tool_calls: [{ id: 'x' }] }] }).message).toContain('function')
})

test('toText() replaces an image by a placeholder if the scripted model accepts images; different images have different placeholders', async () => {
  const folder = embeddedModelFolder()
  const seeing = await loadChatTemplate(folder, await loadTokenizer(folder), { images: true })
  const text = (url: string) => {
    const content = [
      { type: 'text', text: 'Look:' },
      { type: 'image_url', image_url: { url } },
    ]
    return seeing.toText({ messages: [{ role: 'user', content }] })
  }
  expect(text('data:image/png;base64,AAAA')).toMatch(/Look:\n<image [0-9a-f]{16}><\|im_end\|>/)
  expect(text('data:image/png;base64,AAAA')).toBe(text('data:image/png;base64,AAAA'))
  expect(text('data:image/png;base64,BBBB')).not.toBe(text('data:image/png;base64,AAAA'))
})

test('toText() rejects add_generation_prompt together with continue_final_message', () => {
  const messages = [{ role: 'assistant', content: 'x' }]
  expect(refusalOf({ messages, addGenerationPrompt: true, continueFinalMessage: true }).message).toContain(
    'Cannot set both',
  )
})

test('toText() rejects continuing a message that the template omits', () => {
  const messages = [{ role: 'developer', content: 'x' }]
  expect(refusalOf({ messages, addGenerationPrompt: false, continueFinalMessage: true })).toMatchObject({
    param: 'continue_final_message',
  })
})

test('toText() accepts arguments that are objects, and plain tools', () => {
  const text = template.toText({
    messages: [
      { role: 'assistant', content: null, tool_calls: [{ function: { name: 'f', arguments: { b: 0.00001, a: 1 } } }] },
    ],
    tools: [{ name: 'f', limit: 2 }],
  })
  expect(text).toContain('{"name": "f", "arguments": {"b": 1e-05, "a": 1}}')
  expect(text).toContain('\n{"name": "f", "limit": 2}\n')
})

test('templates print numbers in Python’s notation everywhere', () => {
  const config = {
    chat_template: '{{ tools[0].x }} "{{ tools[0].x }}" {{ tools | tojson }} {{ raise_exception("no") if stop }}',
  }
  const custom = createChatTemplate(config, { encode: () => new Int32Array() })
  const tools = parsePythonJson('[{"x": 2.0, "5": "y"}]') as unknown[]
  const messages = [{ role: 'user', content: '' }]
  expect(custom.toText({ messages, tools })).toBe('2.0 "2.0" [{"x": 2.0, "5": "y"}] ')
  expect(() => custom.toText({ messages, tools, variables: { stop: true } })).toThrow(ChatTemplateError)
})

function toPrompt(body: string): ChatPrompt {
  const request = JSON.parse(body) as Record<string, unknown>
  const tools = (parsePythonJson(body) as Map<string, unknown>).get('tools')
  return {
    messages: request['messages'] as ChatPrompt['messages'],
    ...(tools === undefined ? {} : { tools: tools as unknown[] }),
    addGenerationPrompt: request['add_generation_prompt'] !== false,
    continueFinalMessage: request['continue_final_message'] === true,
    variables: request['chat_template_kwargs'] as Record<string, unknown> | undefined,
  }
}

function refusalOf(prompt: ChatPrompt): ChatTemplateError {
  try {
    template.toText(prompt)
  } catch (error) {
    if (error instanceof ChatTemplateError) return error
    throw error
  }
  throw new Error('the prompt was accepted')
}
