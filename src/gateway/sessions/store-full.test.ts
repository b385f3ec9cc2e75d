import pino from 'pino'
import { expect, test } from 'vitest'
import { systemClock } from '../../lib/async/clock.ts'
import { randomIds } from '../../lib/random-ids.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import type { SessionLog, SessionStore } from '../../store/store.ts'
import { createControlApp } from './control-app.ts'
import { Gateway } from '../gateway.ts'
import type { Upstream } from '../upstreams/upstream.ts'

const full = new RolloutError('store.unavailable', 'The call log /secret/place cannot be written: the disk is full.', {
  status: 503,
}).failure

/** A store whose logs can be made to fail. */
function createStore(state: { broken?: Failure }): SessionStore {
  return {
    async open({ id }) {
      const log: SessionLog = {
        sessionId: id,
        get broken() {
          return state.broken
        },
        turns: 0,
        bytes: 0,
        appendIntent() {},
        async appendEnd() {},
        appendDelivery() {},
        async close() {},
      }
      return log
    },
    async [Symbol.asyncDispose]() {},
  }
}

const upstream = {
  kind: 'vllm',
  url: 'http://127.0.0.1:1',
  capabilities: {},
  send: () => expect.unreachable(),
  async [Symbol.asyncDispose]() {},
} as unknown as Upstream

async function start(state: { broken?: Failure }): Promise<Gateway> {
  return Gateway.start({
    upstream,
    store: createStore(state),
    ids: randomIds(() => systemClock.now()),
    now: () => systemClock.now(),
    logger: pino({ level: 'silent' }),
  })
}

const user = { role: 'user', content: 'hi' }

test.each([
  ['/v1/chat/completions', { model: 'm', messages: [user] }, { error: { message: expect.any(String) } }],
  ['/v1/responses', { model: 'm', input: 'hi' }, { error: { message: expect.any(String) } }],
  [
    '/v1/messages',
    { model: 'm', max_tokens: 1, messages: [user] },
    { type: 'error', error: { message: expect.any(String) } },
  ],
  [
    '/v1beta/models/m:generateContent',
    { contents: [{ role: 'user', parts: [{ text: 'hi' }] }] },
    { error: { code: 503, message: expect.any(String) } },
  ],
])('%s gets a 503 in the format of its API when the disk is full', async (path, body, shape) => {
  const state: { broken?: Failure } = {}
  await using gateway = await start(state)
  const { baseUrl, key } = await gateway.openSession()
  state.broken = full
  const headers = { authorization: `Bearer ${key}`, 'x-api-key': key, 'content-type': 'application/json' }
  const answer = await fetch(`${baseUrl}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
  const text = await answer.text()
  expect([answer.status, JSON.parse(text)]).toMatchObject([503, shape])
  expect(text).not.toContain('secret')
})

test('the control API answers 503 to the opening of a session when the disk is full', async () => {
  await using gateway = await start({ broken: full })
  await expect(gateway.openSession()).rejects.toMatchObject({ code: 'store.unavailable', failure: { status: 503 } })
  const app = createControlApp({ gateway, engine: { kind: 'vllm', url: '' }, token: 'secret', host: '127.0.0.1' })
  const headers = { authorization: 'Bearer secret', host: '127.0.0.1' }
  const answer = await app.request('http://127.0.0.1/sessions', { method: 'POST', headers, body: '{}' })
  expect([answer.status, await answer.json()]).toMatchObject([503, { code: 'store.unavailable' }])
})

test('calls succeed when the log fails for another reason', async () => {
  const broken = new RolloutError('store.unavailable', 'not there').failure
  await using gateway = await start({ broken })
  expect(await gateway.openSession()).toMatchObject({ key: expect.any(String) })
})
