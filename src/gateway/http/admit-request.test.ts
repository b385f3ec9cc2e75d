import { describe, expect, test } from 'vitest'
import { RolloutError } from '../../model/failure.ts'
import { assertAdmissible } from './admit-request.ts'
import { dialects } from '../dialects/index.ts'
import { bareContext } from '../dialects/dialect.ts'

type Body = Record<string, unknown>

/** Returns the error that the harness receives; undefined when the request is admitted. */
function refusal(id: string, value: Body): { status: number; body: unknown } | undefined {
  const dialect = dialects.find((one) => one.id === id)!
  const route = dialect.routes.find(({ kind }) => kind === 'generate')!
  const request = dialect.parseRequest(
    { text: JSON.stringify(value), value },
    { ...bareContext(route), wildcards: ['m'] },
  )
  try {
    assertAdmissible(request)
    return undefined
  } catch (error) {
    if (!(error instanceof RolloutError)) throw error
    return dialect.renderError(error.failure)
  }
}

const chat = (content: unknown): Body => ({ model: 'm', messages: [{ role: 'user', content }] })
const responses = (part: unknown): Body => ({ model: 'm', input: [{ role: 'user', content: [part] }] })
const anthropic = (...content: unknown[]): Body => ({
  model: 'm',
  max_tokens: 9,
  messages: [{ role: 'user', content }],
})
const google = (part: unknown): Body => ({ contents: [{ role: 'user', parts: [part] }] })

/** Every field of the four APIs that can contain the URL of media. */
const PLACES: [string, string, (url: string) => Body][] = [
  ['openai-chat', 'image_url', (url) => chat([{ type: 'image_url', image_url: { url } }])],
  ['openai-chat', 'video_url', (url) => chat([{ type: 'video_url', video_url: { url } }])],
  ['openai-chat', 'audio_url', (url) => chat([{ type: 'audio_url', audio_url: { url } }])],
  ['openai-responses', 'input_image', (url) => responses({ type: 'input_image', image_url: url })],
  ['openai-responses', 'file_url', (url) => responses({ type: 'input_file', file_url: url })],
  [
    'openai-responses',
    'output of a call',
    (url) => ({
      model: 'm',
      input: [
        { role: 'user', content: 'look' },
        { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' },
        { type: 'function_call_output', call_id: 'c', output: [{ type: 'input_image', image_url: url }] },
      ],
    }),
  ],
  ['anthropic-messages', 'image source', (url) => anthropic({ type: 'image', source: { type: 'url', url } })],
  ['anthropic-messages', 'document source', (url) => anthropic({ type: 'document', source: { type: 'url', url } })],
  [
    'anthropic-messages',
    'tool result',
    (url) =>
      anthropic({ type: 'tool_result', tool_use_id: 'c', content: [{ type: 'image', source: { type: 'url', url } }] }),
  ],
  ['google-generate', 'fileData', (fileUri) => google({ fileData: { mimeType: 'image/png', fileUri } })],
  ['google-generate', 'file_data', (file_uri) => google({ file_data: { mime_type: 'video/mp4', file_uri } })],
]

const URLS = [
  'http://169.254.169.254/latest/meta-data/',
  'https://example.com/a.png',
  'file:///etc/passwd',
  'ftp://host/a.png',
  'gs://bucket/a.png',
  '/etc/passwd.png',
  'DATA:/../a.png',
  ' data:image/png;base64,AA==',
]

describe('assertAdmissible()', () => {
  test.each(PLACES)('%s: assertAdmissible() rejects media in %s that are not inline data', (id, _, body) => {
    for (const url of URLS) {
      const refused = refusal(id, body(url))
      expect(refused, url).toMatchObject({ status: 400 })
      expect(JSON.stringify(refused?.body), url).toContain('inline data')
      // The message is logged, and a URL may contain a credential.
      expect(JSON.stringify(refused?.body)).not.toContain('169.254')
    }
    expect(refusal(id, body('data:image/png;base64,AA=='))).toBeUndefined()
  })

  test.each([
    ['logit_bias', { '42': 100 }],
    ['bad_words', ['\ud800']],
    ['allowed_token_ids', [1]],
    ['ignore_eos', true],
    ['min_tokens', 5],
    ['structured_outputs', { choice: ['a'] }],
    ['guided_json', { type: 'object' }],
    ['grammar', 'root ::= "a"'],
    ['json_schema', { type: 'object' }],
    ['prompt_token_ids', [1]],
    ['kv_transfer_params', { prompt_token_ids: [1] }],
    ['chat_template', '{{ x }}'],
    ['continue_final_message', true],
    ['custom_logit_processor', 'x'],
    ['lora_path', '/x'],
  ])('Chat Completions: assertAdmissible() rejects %s by name, and admits its neutral values', (name, value) => {
    expect(refusal('openai-chat', { ...chat('hi'), [name]: value })).toMatchObject({
      status: 400,
      body: { error: { param: name, message: expect.stringContaining(name) } },
    })
    for (const neutral of [null, false, 0, '', [], {}]) {
      expect(refusal('openai-chat', { ...chat('hi'), [name]: neutral })).toBeUndefined()
    }
  })

  test('text with URLs, file ids and unknown fields are admitted', () => {
    expect(
      refusal('openai-chat', { ...chat('see http://169.254.169.254/'), store: false, vendor: { x: 1 } }),
    ).toBeUndefined()
    expect(refusal('openai-responses', responses({ type: 'input_file', file_id: 'file-1' }))).toBeUndefined()
    const found = {
      type: 'search_result',
      source: 'https://a.example/',
      title: 'A',
      content: [{ type: 'text', text: 'x' }],
    }
    expect(refusal('anthropic-messages', anthropic(found))).toBeUndefined()
  })
})
