import { describe, expect, test } from 'vitest'
import { createControlApp } from './control-app.ts'
import type { GatewayControl, SessionOptions } from './gateway.ts'

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

const engine = { kind: 'vllm', url: 'http://engine' }

describe('the control API', () => {
  test('opens sessions with forced sampling, and closes them', async () => {
    const { gateway, opened, closed } = fakeGateway()
    const app = createControlApp({ gateway, engine })
    const body = JSON.stringify({ session_id: 'ses_7', task_id: 't', sampling: { temperature: 1, max_tokens: 9 } })
    const response = await app.request('/sessions', { method: 'POST', body })
    expect([response.status, await response.json()]).toEqual([
      201,
      { session_id: 'ses_7', base_url: 'http://h/s/ses_7', api_key: 'k' },
    ])
    expect(opened[0]).toMatchObject({
      id: 'ses_7',
      origin: { task_id: 't' },
      sampling: { temperature: 1, maxTokens: 9 },
    })
    expect((await app.request('/sessions/ses_7', { method: 'DELETE' })).status).toBe(200)
    expect(closed).toEqual(['ses_7'])
  })

  test('pauses, resumes and names the weights', async () => {
    const app = createControlApp({ gateway: fakeGateway().gateway, engine })
    const paused = await app.request('/admin/inference/pause?timeout_seconds=1', { method: 'POST' })
    expect([paused.status, await paused.json()]).toEqual([
      200,
      { paused: true, inflight: 2, sessions: 1, weight_version: null, base_url: 'http://engine', engine: 'vllm' },
    ])
    expect((await app.request('/admin/inference/pause?timeout_seconds=0', { method: 'POST' })).status).toBe(504)
    await app.request('/admin/inference/resume', { method: 'POST' })
    const body = JSON.stringify({ weight_version: 'step-3' })
    const named = await app.request('/admin/weights', { method: 'PUT', body })
    expect(await named.json()).toMatchObject({ paused: false, weight_version: 'step-3' })
  })

  test('shows metrics of all processes together', async () => {
    const app = createControlApp({ gateway: fakeGateway().gateway, engine })
    const text = await (await app.request('/metrics')).text()
    expect(text).toContain('polar_sampled_tokens_total 11\n')
    expect(text).toContain('polar_in_flight 2\n')
  })

  test.each([
    ['POST', '/sessions', '{"session_id":"../x"}', 400],
    ['POST', '/sessions', '{"sessionid":"x"}', 400],
    ['POST', '/sessions', 'not json', 400],
    ['PUT', '/admin/weights', '{"weight_version":7}', 400],
    ['POST', '/admin/inference/pause?timeout_seconds=x', undefined, 400],
    ['DELETE', '/sessions/..%2fx', undefined, 400],
    ['GET', '/nothing', undefined, 404],
  ])('%s %s %s is refused with %i', async (method, path, body, status) => {
    const { gateway, opened } = fakeGateway()
    const response = await createControlApp({ gateway, engine }).request(path, { method, body })
    expect(response.status).toBe(status)
    expect(await response.json()).toHaveProperty('error')
    expect(opened).toEqual([])
  })

  test('asks for its token on every route but /health', async () => {
    const app = createControlApp({ gateway: fakeGateway().gateway, engine, token: 'secret' })
    expect((await app.request('/health')).status).toBe(200)
    for (const [method, path] of [
      ['POST', '/sessions'],
      ['GET', '/metrics'],
      ['POST', '/admin/inference/pause'],
      ['GET', '/nothing'],
    ] as const) {
      expect((await app.request(path, { method })).status).toBe(401)
      expect((await app.request(path, { method, headers: { authorization: 'Bearer wrong' } })).status).toBe(401)
    }
    const allowed = await app.request('/metrics', { headers: { authorization: 'Bearer secret' } })
    expect(allowed.status).toBe(200)
  })
})
