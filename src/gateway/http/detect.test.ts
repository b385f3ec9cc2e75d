import { describe, expect, test } from 'vitest'
import { RolloutError } from '../../model/failure.ts'
import { createDetector, type Detected } from './detect.ts'
import { dialects } from '../dialects/index.ts'

const detect = createDetector(dialects)

function detected(method: string, url: string, headers: Record<string, string> = {}): Detected {
  return detect({ method, url, headers })
}

function codeOf(method: string, url: string): string {
  try {
    detected(method, url)
    return 'found'
  } catch (error) {
    return error instanceof RolloutError ? error.code : String(error)
  }
}

describe('createDetector()', () => {
  test('reads the session from the path and the key from any header a provider uses', () => {
    const url = '/s/ses_1/v1/chat/completions?x=1'
    expect(detected('POST', url, { authorization: 'Bearer k1' })).toMatchObject({
      sessionId: 'ses_1',
      key: 'k1',
      dialect: { id: 'openai-chat' },
      context: { route: { kind: 'generate' } },
    })
    expect(detected('POST', url, { 'x-api-key': 'k2' }).key).toBe('k2')
    expect(detected('POST', url, { 'x-goog-api-key': 'k3' }).key).toBe('k3')
  })

  test('returns no session id when the harness dropped the path prefix', () => {
    expect(detected('POST', '/v1/chat/completions').sessionId).toBeUndefined()
  })

  test('ignores session ids in headers and query', () => {
    const headers = { 'x-session-id': 'ses_2', authorization: 'Bearer k' }
    expect(detected('POST', '/s/ses_1/v1/chat/completions?session_id=ses_2', headers).sessionId).toBe('ses_1')
    expect(detected('POST', '/v1/chat/completions?session_id=ses_2', headers).sessionId).toBeUndefined()
  })

  test.each([
    ['POST', '/s/a/v1/chat/completion', 'request.unknown-route'],
    ['POST', '/s/a/v1/chat/completions/extra', 'request.unknown-route'],
    ['POST', '/s/a/v1/embeddings', 'request.unknown-route'],
    ['POST', '/s/a', 'request.unknown-route'],
    ['POST', '/', 'request.unknown-route'],
    ['POST', '/s/a/../b/v1/chat/completions', 'request.unknown-route'],
    ['GET', '/s/a/v1/chat/completions', 'request.wrong-method'],
    ['DELETE', '/s/a/v1/models', 'request.wrong-method'],
    ['GET', '/s/a/v1/models/', 'request.unknown-route'],
    ['GET', '/s/a/v1/models/tiny', 'found'],
  ])('%s %s: %s', (method, url, code) => {
    expect(codeOf(method, url)).toBe(code)
  })
})
