import { zstdCompressSync, zstdDecompressSync } from 'node:zlib'
import { afterAll, expect, test } from 'vitest'
import { makeOutcome, makeResult } from '../../../test/support/rollout-server.ts'
import { MAX_RESULT_MEMBERS, PostedResult } from '../../api/routes/node-routes.ts'
import { TaskRequest } from '../../model/task.ts'
import { createResultChecker } from './check-result.ts'

const checker = createResultChecker()
afterAll(() => checker[Symbol.asyncDispose]())

const task = TaskRequest.parse({ task_id: 't', instruction: '', agent: { harness: 'codex' } })
const outcome = makeOutcome({ schemaVersion: 1, sessionId: 'ses_1', attempt: 1, task }, 'n1')
const PARAM = 'body.result'
const check = (compressed: Uint8Array) => checker.check(compressed, outcome, PARAM)
const long = (more: object = {}) => {
  const response_ids = Array.from({ length: 500_000 }, (_, i) => i)
  const result = makeResult(outcome)
  const trace = { ...result.trajectory.traces[0]!, response_ids, loss_mask: response_ids.map(() => 1), ...more }
  const trajectory = { ...result.trajectory, traces: [{ ...trace, response_logprobs: null }] }
  return zstdCompressSync(JSON.stringify({ ...result, trajectory }))
}

test('long results are validated like short ones, several at a time', async () => {
  await Promise.all([check(long()), check(long()), check(long())])
  const wrong = check(long({ loss_mask: [1] }))
  await expect(wrong).rejects.toMatchObject({ failure: { code: 'request.malformed', status: 422 } })
  const other = checker.check(long(), { ...outcome, sessionId: 'ses_2' }, PARAM)
  await expect(other).rejects.toThrow('belongs to session ses_1')
})

test('the event loop is not blocked while a long result is checked', async () => {
  const work = check(long())
  let longest = 0
  let isDone = false
  void work.finally(() => void (isDone = true))
  for (let last = performance.now(); !isDone; last = performance.now()) {
    await new Promise((resolve) => setImmediate(resolve))
    longest = Math.max(longest, performance.now() - last)
  }
  await work
  expect(longest).toBeLessThan(1000)
})

test('a decompression bomb is refused without buffering it', async () => {
  const bomb = zstdCompressSync(Buffer.alloc(300 * 1024 * 1024))
  expect(bomb.length).toBeLessThan(100_000)
  await expect(check(bomb)).rejects.toMatchObject({
    failure: { code: 'request.too-large', status: 413 },
  })
})

test('a posted result is parsed, long ones in a thread', async () => {
  const result = { ...makeResult(outcome), metadata: { mine: 'x'.repeat(300_000) } }
  const reading = await checker.read(Buffer.from(JSON.stringify(result)))
  expect(reading).toMatchObject({ kind: 'read', nodeId: 'n1', outcome: { sessionId: 'ses_1', status: 'COMPLETED' } })
  const stored = reading.kind === 'read' ? zstdDecompressSync(reading.compressed).toString() : ''
  expect(JSON.parse(stored)).toEqual(PostedResult.parse(result))
})

test.each(['trajectory', 'metadata'])('%s as millions of numbers is refused with a few problems', async (field) => {
  const head = JSON.stringify({ ...makeResult(outcome), [field]: undefined }).slice(0, -1)
  const many = `[${'1,'.repeat(2_000_000)}1]`
  const value = field === 'trajectory' ? `{"status":"COMPLETED","metadata":{},"traces":${many}}` : many
  const reading = await checker.read(Buffer.from(`${head},"${field}":${value}}`))
  expect(reading.kind).toBe('invalid')
  expect(reading.kind === 'invalid' && reading.problems.length).toBeLessThanOrEqual(20)
})

test('a posted result that is not JSON, nests too deep or holds too many lists is refused', async () => {
  const failureOf = async (text: string) => {
    const reading = await checker.read(Buffer.from(text))
    return reading.kind === 'failed' ? reading.failure : undefined
  }
  expect(await failureOf('{')).toMatchObject({ code: 'request.malformed', status: 400 })
  expect(await failureOf('['.repeat(300_000))).toMatchObject({ message: expect.stringContaining('nests deeper') })
  const many = `[${'[],'.repeat(MAX_RESULT_MEMBERS)}1]`
  expect(await failureOf(many)).toMatchObject({ message: expect.stringContaining('lists') })
})
