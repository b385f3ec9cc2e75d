import { createHmac } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { Grading, type GradeOptions } from '../../../test/support/grade.ts'
import type { EvaluatorDeps } from './evaluator.ts'
import { evaluators } from './index.ts'

interface Received {
  headers: IncomingHttpHeaders
  body: string
}
/** Reaction of the service to a request; a string is the response body, undefined drops the connection. */
type Behaviour = string | { status: number; body?: string; headers?: Record<string, string> } | undefined

describe('the evaluator http', () => {
  let grading: Grading
  let server: Server
  let url: string
  let received: Received[] = []
  let behaviours: Behaviour[] = []

  beforeAll(async () => {
    grading = await Grading.start('local')
    server = createServer((request, response) => {
      const pieces: Buffer[] = []
      request.on('data', (piece: Buffer) => pieces.push(piece))
      request.on('end', () => {
        received.push({ headers: request.headers, body: Buffer.concat(pieces).toString() })
        const behaviour = behaviours.length > 1 ? behaviours.shift() : behaviours[0]
        if (behaviour === undefined) request.socket.destroy()
        else if (typeof behaviour === 'string') response.end(behaviour)
        else response.writeHead(behaviour.status, behaviour.headers).end(behaviour.body)
      })
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/grade?token=hidden`
  })
  beforeEach(() => {
    received = []
  })
  afterAll(async () => {
    server.close()
    await grading[Symbol.asyncDispose]()
  })

  const create = (config: object = {}, deps: Partial<EvaluatorDeps> = {}) => {
    const given = evaluators.config.parse({ kind: 'http', url, retry_backoff_seconds: 0, ...config })
    return evaluators.create(given, {
      now: () => 1_700_000_000_500,
      secret: () => undefined,
      mayCall: () => true,
      ...deps,
    })
  }
  const grade = (answers: Behaviour[], config: object = {}, options: Omit<GradeOptions, 'evaluator'> = {}) => {
    behaviours = answers
    return grading.grade({ ...options, evaluator: create(config) })
  }

  test('posts the session and returns the result of the service', async () => {
    const answer = {
      outcome_reward: 0.5,
      components: { style: 1 },
      trace_rewards: [null, 1],
      metadata: { by: 'service' },
    }
    const { result, evidence } = await grade(
      [JSON.stringify(answer)],
      {},
      {
        samples: 2,
        task: { id: 't1', instruction: 'Do it', metadata: { a: 1 } },
        conversation: [{ role: 'user', content: 'Hi' }],
        ending: { kind: 'timeout', exitCode: null },
      },
    )
    expect(result).toEqual(answer)
    expect(JSON.parse(received[0]!.body)).toEqual({
      schema_version: 1,
      session_id: expect.any(String),
      task: { id: 't1', instruction: 'Do it', metadata: { a: 1 } },
      ending: { kind: 'timeout', exit_code: null },
      samples: 2,
      messages: [{ role: 'user', content: 'Hi' }],
    })
    expect([...evidence.keys()]).toEqual(['http-request.json', 'http-answer.json'])
  })

  test('signs body and time with the secret, which is not stored', async () => {
    behaviours = ['{"outcome_reward": 1}']
    const secret = (name: string) => (name === 'GRADER_SECRET' ? 'sesame' : undefined)
    const { evidence } = await grading.grade({ evaluator: create({ secret_env: 'GRADER_SECRET' }, { secret }) })
    const { headers, body } = received[0]!
    const expected = createHmac('sha256', 'sesame').update(`1700000000.${body}`).digest('hex')
    expect(headers['x-polar-signature']).toBe(`t=1700000000,v1=${expected}`)
    expect(body + [...evidence.values()].join()).not.toContain('sesame')
  })

  test('retries temporary failures with the same idempotency key', async () => {
    const { result } = await grade([
      undefined,
      { status: 503 },
      { status: 429, headers: { 'retry-after': '0' } },
      '{"outcome_reward": 1}',
    ])
    expect(result).toMatchObject({ outcome_reward: 1 })
    expect(received).toHaveLength(4)
    expect(new Set(received.map(({ headers }) => headers['idempotency-key'])).size).toBe(1)
    expect(new Set(received.map(({ body }) => body)).size).toBe(1)
  })

  test('throws after the last retry, without a reward', async () => {
    await expect(grade([{ status: 500, body: 'broken' }], { max_retries: 2 })).rejects.toMatchObject({
      code: 'evaluator.crashed',
      message: expect.stringMatching(/answered 500: broken after 3 attempts/),
    })
    expect(received).toHaveLength(3)
    await expect(grade([undefined], { max_retries: 0 })).rejects.toMatchObject({ code: 'evaluator.crashed' })
  })

  test('throws evaluator.timeout if the service does not respond in time', async () => {
    const silent = createServer(() => {})
    silent.listen(0, '127.0.0.1')
    await once(silent, 'listening')
    const address = `http://127.0.0.1:${(silent.address() as AddressInfo).port}/`
    const graded = grade([], { url: address, timeout_seconds: 0.2, max_retries: 1 })
    await expect(graded).rejects.toMatchObject({ code: 'evaluator.timeout' })
    silent.closeAllConnections()
    silent.close()
  })

  test.each([
    ['status 403', { status: 403, body: 'no' }],
    ['a redirect', { status: 302, headers: { location: 'http://127.0.0.1:1/' } }],
    ['an answer that is not JSON', 'OK'],
    ['a reward that is not a number', '{"outcome_reward": "1"}'],
    ['a reward that is not finite', '{"outcome_reward": 1e999}'],
    ['a reward outside of the range', '{"outcome_reward": 1.5}'],
    ['a reward of a trace outside of the range', '{"outcome_reward": 1, "trace_rewards": [-1]}'],
    ['an answer without a reward', '{"metadata": {}}'],
    ['rewards for other traces', '{"trace_rewards": [1, 1, 1]}'],
    ['a very long answer', `{"outcome_reward": 1, "metadata": {"a": "${'x'.repeat(5_000_000)}"}}`],
  ] satisfies [string, Behaviour][])('%s is not a reward and is not retried', async (_, behaviour) => {
    const failed = grade([behaviour])
    await expect(failed).rejects.toMatchObject({ code: 'evaluator.crashed' })
    await expect(failed).rejects.not.toThrow('hidden')
    expect(received).toHaveLength(1)
  })

  test.each([
    ['an address', '127.0.0.1'],
    ['a name', 'localhost'],
  ])('does not connect by %s to a forbidden address', async (_, host) => {
    const { port } = new URL(url)
    const evaluator = create(
      { url: `http://${host}:${port}/grade` },
      { mayConnect: (address, to) => to !== Number(port) || !['127.0.0.1', '::1'].includes(address) },
    )
    await expect(grading.grade({ evaluator })).rejects.toMatchObject({ code: 'config.invalid' })
    expect(received).toEqual([])
  })

  test('identifies itself as an evaluator, so that our own APIs can reject it', async () => {
    await grade(['{"outcome_reward": 1}'])
    expect(received[0]!.headers['x-polar-outbound']).toBe('evaluator')
  })

  test('accepts rewards in the declared range', async () => {
    const { result } = await grade(['{"outcome_reward": -4}'], { reward_range: [-5, 5] })
    expect(result.outcome_reward).toBe(-4)
    expect(create({ reward_range: [-5, 5] }).rewards).toEqual([-5, 5])
  })

  test('rejects URLs and secrets that the operator does not allow', () => {
    expect(() => create({}, { mayCall: () => false })).toThrow(/may not be called/)
    expect(() => create({ url: 'file:///etc/passwd' })).toThrow(/neither http nor https/)
    expect(() => create({ url: 'http://me:secret@127.0.0.1/' })).toThrow(/must not contain credentials/)
    expect(() => create({ secret_env: 'NONE' })).toThrow(/no secret named NONE/)
    expect(received).toEqual([])
  })
})
