import pino from 'pino'
import { expect, test } from 'vitest'
import { createAccess } from './access.ts'
import { createApp } from '../app.ts'
import type { ServerDeps } from '../deps.ts'

function appWhoseDatabaseThrows(error: Error) {
  const dispatch = new Proxy(
    {},
    {
      get() {
        throw error
      },
    },
  )
  const deps = { dispatch, clock: { now: () => 0 }, monotonic: () => 0, logger: pino({ level: 'silent' }) }
  return createApp(deps as unknown as ServerDeps, { access: createAccess({ tokens: [], isOpen: true }, '127.0.0.1') })
}

test('a full disk of the database returns 503 with retry-after', async () => {
  const error = Object.assign(new Error('could not extend file "base/5/16434": No space left on device'), {
    code: '53100',
  })
  const headers = { host: '127.0.0.1:8080' }
  const answer = await appWhoseDatabaseThrows(error).request('/tasks', { headers })
  expect([answer.status, answer.headers.get('retry-after')]).toEqual([503, '30'])
  const body = (await answer.json()) as { error: { code: string; message: string } }
  expect(body.error).toMatchObject({ code: 'store.unavailable', message: expect.stringContaining('disk') })
  expect(body.error.message).not.toContain('base/5')
})

test('any other error of the database returns 500', async () => {
  const error = Object.assign(new Error('relation "tasks" does not exist'), { code: '42P01' })
  const answer = await appWhoseDatabaseThrows(error).request('/tasks', { headers: { host: '127.0.0.1:8080' } })
  expect(answer.status).toBe(500)
})
