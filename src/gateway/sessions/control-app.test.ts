import { describe, expect, test } from 'vitest'
import { OUTBOUND_HEADER } from '../../lib/net/outbound-header.ts'
import { createControlApp, type ControlDeps } from './control-app.ts'
import type { GatewayControl, SessionOptions } from '../gateway.ts'

function fakeGateway(): { gateway: GatewayControl; opened: SessionOptions[]; closed: string[] } {
  const state = { paused: false, weightVersion: undefined as string | undefined }
  const opened: SessionOptions[] = []
  const closed: string[] = []
  return {
    opened,
    closed,
    gateway: {
      async openSession(options = {}) {
        opened.push(options)
        const id = options.id ?? 'ses_1'
        return { id, baseUrl: `http://h/s/${id}`, key: 'k' }
      },
      async closeSession(id) {
        closed.push(id)
        return undefined
      },
      async pause(drainTimeoutMs) {
        state.paused = true
        return drainTimeoutMs > 0
      },
      async resume() {
        state.paused = false
      },
      async setWeightVersion(version) {
        state.weightVersion = version
      },
      status: async () => ({ ...state, inFlight: 2, sessions: 1 }),
      metrics: async () => [{ polar_sampled_tokens_total: 5 }, { polar_sampled_tokens_total: 6 }],
    },
  }
}

const TOKEN = 'control-token-0123456789'
const continuation = { via: 'chat', why: 'chat requests contain the prompt as ids' } as const
const access = { engine: { kind: 'vllm', url: 'http://engine', continuation }, token: TOKEN, host: '127.0.0.1' }

/** A request of a program on this machine, with the token unless `headers` overrides it. */
function callerOf(gateway: GatewayControl, more: Partial<ControlDeps> = {}) {
  const app = createControlApp({ gateway, ...access, ...more })
  const own = { host: '127.0.0.1:8081', authorization: `Bearer ${TOKEN}` }
  return async (path: string, init: { method?: string; body?: string; headers?: Record<string, string> } = {}) =>
    app.request(path, { ...init, headers: { ...own, ...init.headers } })
}

describe('the control API', () => {
  test('opens sessions with forced sampling, and closes them', async () => {
    const { gateway, opened, closed } = fakeGateway()
    const call = callerOf(gateway)
    const body = JSON.stringify({ session_id: 'ses_7', task_id: 't', sampling: { temperature: 1, max_tokens: 9 } })
    const response = await call('/sessions', { method: 'POST', body })
    expect([response.status, await response.json()]).toEqual([
      201,
      { session_id: 'ses_7', base_url: 'http://h/s/ses_7', api_key: 'k' },
    ])
    expect(opened[0]).toMatchObject({
      id: 'ses_7',
      origin: { task_id: 't' },
      sampling: { temperature: 1, maxTokens: 9 },
    })
    expect((await call('/sessions/ses_7', { method: 'DELETE' })).status).toBe(200)
    expect(closed).toEqual(['ses_7'])
  })

  test('pauses, resumes and sets the weight version', async () => {
    const call = callerOf(fakeGateway().gateway)
    const paused = await call('/admin/inference/pause?timeout_seconds=1', { method: 'POST' })
    expect([paused.status, await paused.json()]).toEqual([
      200,
      {
        paused: true,
        inflight: 2,
        sessions: 1,
        weight_version: null,
        base_url: 'http://engine',
        engine: 'vllm',
        continuation,
      },
    ])
    expect((await call('/admin/inference/pause?timeout_seconds=0', { method: 'POST' })).status).toBe(504)
    await call('/admin/inference/resume', { method: 'POST' })
    const body = JSON.stringify({ weight_version: 'step-3' })
    const named = await call('/admin/weights', { method: 'PUT', body })
    expect(await named.json()).toMatchObject({ paused: false, weight_version: 'step-3' })
  })

  test('adds up the metrics of all processes', async () => {
    const call = callerOf(fakeGateway().gateway)
    const text = await (await call('/metrics')).text()
    expect(text).toContain('polar_sampled_tokens_total 11\n')
    expect(text).toContain('polar_in_flight 2\n')
    expect(text).toContain('polar_continuation 1\n')
  })

  test.each([
    ['POST', '/sessions', '{"session_id":"../x"}', 400],
    ['POST', '/sessions', '{"sessionid":"x"}', 400],
    ['POST', '/sessions', 'not json', 400],
    ['PUT', '/admin/weights', '{"weight_version":7}', 400],
    ['POST', '/admin/inference/pause?timeout_seconds=x', undefined, 400],
    ['DELETE', '/sessions/..%2fx', undefined, 400],
    ['GET', '/nothing', undefined, 404],
  ])('%s %s %s is rejected with %i', async (method, path, body, status) => {
    const { gateway, opened } = fakeGateway()
    const response = await callerOf(gateway)(path, { method, ...(body === undefined ? {} : { body }) })
    expect(response.status).toBe(status)
    expect(await response.json()).toHaveProperty('error')
    expect(opened).toEqual([])
  })

  const routes = [
    ['POST', '/sessions'],
    ['DELETE', '/sessions/ses_1'],
    ['GET', '/metrics'],
    ['GET', '/admin/inference/status'],
    ['POST', '/admin/inference/pause'],
    ['POST', '/admin/inference/resume'],
    ['PUT', '/admin/weights'],
    ['GET', '/nothing'],
  ] as const

  test.each(routes)('%s %s requires the token', async (method, path) => {
    const { gateway, opened, closed } = fakeGateway()
    const call = callerOf(gateway)
    const wrong = ['', 'Bearer', 'Bearer ', 'Bearer wrong', `Bearer ${TOKEN}x`, `Bearer ${TOKEN.slice(0, -1)}`, TOKEN]
    for (const authorization of wrong) {
      expect((await call(path, { method, headers: { authorization } })).status, authorization).toBe(401)
    }
    expect([...opened, ...closed]).toEqual([])
  })

  test('accepts its token as a bearer token, in the header of NVIDIA Polar and as Basic credentials', async () => {
    const call = callerOf(fakeGateway().gateway)
    const ways: Record<string, string>[] = [
      { authorization: `bearer ${TOKEN}` },
      { authorization: '', 'x-polar-control-token': TOKEN },
      { authorization: `Basic ${Buffer.from(`x:${TOKEN}`).toString('base64')}` },
    ]
    for (const headers of ways) expect((await call('/metrics', { headers })).status).toBe(200)
    expect((await call('/health', { headers: { authorization: '' } })).status).toBe(200)
  })

  test.each<Record<string, string>>([
    // DNS rebinding: the name of the page resolves to this machine.
    { host: 'evil.example:8081' },
    { host: '127.0.0.1.evil.example' },
    { host: 'evil.example:8081', origin: 'http://evil.example:8081' },
    { host: '' },
    // A page of another site that has the address.
    { origin: 'https://evil.example' },
    { origin: 'http://localhost:3000' },
    { origin: 'null' },
    { 'sec-fetch-site': 'cross-site' },
    { 'sec-fetch-site': 'same-site' },
    // A callback or an evaluator of a task.
    { [OUTBOUND_HEADER]: 'callback' },
    { [OUTBOUND_HEADER]: 'evaluator' },
  ])('rejects a request with %j on every route, even with the token', async (headers) => {
    const { gateway, opened, closed } = fakeGateway()
    const call = callerOf(gateway)
    for (const [method, path] of [...routes, ['GET', '/health'] as const])
      expect((await call(path, { method, headers })).status, path).toBe(403)
    expect([...opened, ...closed]).toEqual([])
  })

  test('a listener for other machines accepts every host name, but no web page', async () => {
    const call = callerOf(fakeGateway().gateway, { host: '0.0.0.0' })
    expect((await call('/metrics', { headers: { host: 'gateway.lab:8081' } })).status).toBe(200)
    const page = { host: 'gateway.lab:8081', origin: 'https://evil.example' }
    expect((await call('/metrics', { headers: page })).status).toBe(403)
  })
})
