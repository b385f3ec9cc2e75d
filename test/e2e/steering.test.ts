import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'
import { Stack } from '../support/stack.ts'

const script = 'default: { text: hello }'
const messages = [{ role: 'user', content: 'hi' }]

async function polar<T>(...args: string[]): Promise<T> {
  const { stdout } = await promisify(execFile)(process.execPath, ['src/cli/main.ts', ...args])
  return JSON.parse(stdout) as T
}

test('steered calls are recorded and not trained; fields that are not allowed are rejected or dropped', async () => {
  await using stack = await Stack.start({ script })
  const { baseUrl, key, id } = stack.session
  const post = async (path: string, body: unknown): Promise<{ status: number; body: unknown }> => {
    const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
    const response = await fetch(`${baseUrl}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
    return { status: response.status, body: await response.json() }
  }
  const chat = (fields: object): ReturnType<typeof post> =>
    post('/v1/chat/completions', { model: 'tiny', messages, ...fields })

  // Rejected with an error body of the API, before the engine is called.
  const url = 'http://169.254.169.254/latest/'
  const picture = { role: 'user', content: [{ type: 'image', source: { type: 'url', url } }] }
  expect(await chat({ logit_bias: { '5': 100 } })).toMatchObject({
    status: 400,
    body: { error: { param: 'logit_bias' } },
  })
  expect(
    await chat({ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }] }),
  ).toMatchObject({ status: 400, body: { error: { type: 'invalid_request_error' } } })
  expect(await post('/v1/messages', { model: 'm', max_tokens: 9, messages: [picture] })).toMatchObject({
    status: 400,
    body: { type: 'error', error: { type: 'invalid_request_error' } },
  })
  expect(await post('/v1/messages/count_tokens', { model: 'm', messages: [picture] })).toMatchObject({ status: 400 })
  expect(await stack.engineCalls().catch(() => [])).toEqual([])

  // Answered by the engine.
  const plain = await chat({
    store: false,
    model: 'base:adapter',
    cache_salt: 'x',
    messages: [{ ...messages[0], uuid: 1 }],
  })
  expect(plain.status).toBe(200)
  const steered = await chat({
    messages: [{ role: 'user', content: 'json' }],
    response_format: { type: 'json_object' },
  })
  expect(steered.status).toBe(200)
  await stack.recorded()

  const shown = await polar<{ calls: object[] }>('show', id, '--from', stack.dir, '--json')
  expect(shown.calls).toMatchObject([
    {
      steered_by: [],
      dropped_fields: ['messages[].uuid', 'store', 'cache_salt'],
      forced: { model: 'tiny' },
      logprobs_of: 'raw',
    },
    {
      steered_by: ['response-format'],
      dropped_fields: [],
      logprobs_of: 'grammar',
      sampling: { grammar: { response_format: 'json_object' } },
    },
  ])
  const built = await polar<object>('build', id, '--from', stack.dir, '--json')
  expect(built).toMatchObject({ summary: { calls: 2, trainedCalls: 1 }, exclusions: [{ reason: 'steered' }] })
  const allowed = await polar<object>('build', id, '--from', stack.dir, '--json', '--allow-steered', 'response-format')
  expect(allowed).toMatchObject({ summary: { calls: 2, trainedCalls: 2 }, exclusions: [] })
})
