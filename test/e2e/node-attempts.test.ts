import { mkdtemp, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { ANSWER_SCRIPT } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, orderOf, shellTask } from '../support/node-stack.ts'

let scratch: string
let stack: NodeStack
beforeAll(async () => {
  scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-attempts-'))
  await writeFile(join(scratch, 'answers'), 'forty-two')
  const member = { paths: [], hosts: [], secrets: ['MAY_SEE'] }
  stack = await NodeStack.start({
    member,
    script: ANSWER_SCRIPT,
    env: { ...process.env, MAY_SEE: 'this', MUST_NOT: 'that' },
  })
}, 60_000)
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await rm(scratch, { recursive: true, force: true })
})

describe('attempts of one session on one node', { timeout: 60_000 }, () => {
  test('the second attempt starts with an empty record', async () => {
    const order = orderOf(shellTask(bashAgent('call one > a; call two > b')))
    const first = await stack.node.submit(order).outcome
    const second = await stack.node.submit({ ...order, attempt: 2 }).outcome
    expect([first.counts?.calls, second.counts?.calls]).toEqual([2, 2])
    expect(second).toMatchObject({ attempt: 2, status: 'COMPLETED' })
    const now = await createCallLogReader({ dir: join(stack.dir, 'sessions') }).load(order.sessionId)
    expect(now).toMatchObject({ complete: true, origin: { attempt: 2 } })
    const past = await createCallLogReader({ dir: join(stack.dir, 'past', 'attempt-1') }).load(order.sessionId)
    expect(past).toMatchObject({ complete: true, origin: { attempt: 1 } })
    const journal = await readFile(join(stack.dir, 'sessions', order.sessionId, 'journal.jsonl'), 'utf8')
    expect(journal).not.toContain('"attempt":1')
  })

  test('the second attempt cancels a running first attempt and waits until it has ended', async () => {
    const order = orderOf(shellTask(bashAgent('call one > a; sleep 600')))
    const { promise: runs, resolve } = Promise.withResolvers<void>()
    const first = stack.node.submit(order, () => first.status === 'RUNNING' && resolve())
    await runs
    const task = shellTask(bashAgent('call one > a'))
    const second = await stack.node.submit({ ...order, task, attempt: 2 }).outcome
    expect(await first.outcome).toMatchObject({ attempt: 1, status: 'CANCELLED' })
    expect(second).toMatchObject({ attempt: 2, status: 'COMPLETED', counts: { calls: 1 } })
    expect(() => stack.node.submit({ ...order, attempt: 2 })).not.toThrow()
    expect(() => stack.node.submit({ ...order, attempt: 1 })).toThrow('is already running')
    await Promise.all(stack.node.sessions.map(({ outcome, cancel }) => (cancel('enough'), outcome)))
  })
})

describe('a submitted task on a node without allowed paths and hosts', { timeout: 60_000 }, () => {
  test('cannot access files of the host by upload, mount, image, local runtime or evaluator files', async () => {
    const source = join(scratch, 'answers')
    const upload = [{ type: 'upload_file', source, target: '/workspace/answers' }]
    const tasks = [
      shellTask('cat answers', { runtime: { prepare: upload } }),
      shellTask('true', {
        runtime: { eval_prepare: upload },
        evaluator: { strategy: 'command', config: { command: 'true' } },
      }),
      shellTask('cat /x/answers', { runtime: { kwargs: { volumes: [`${scratch}:/x:ro`] } } }),
      shellTask('cat /etc/passwd', { runtime: { backend: 'bubblewrap', image: '/' } }),
      shellTask('true', { runtime: { backend: 'local' } }),
    ]
    for (const task of tasks) {
      const outcome = await stack.node.submit(orderOf(task)).outcome
      expect(outcome).toMatchObject({ status: 'ERROR', failure: { code: 'config.invalid' } })
    }
    // The files of an evaluator are checked before the agent runs.
    const files = [{ source, target: 'answers' }]
    const config = { command: 'cat answers', files }
    const graded = await stack.node.submit(orderOf(shellTask('true', { evaluator: { strategy: 'command', config } })))
      .outcome
    expect(graded).toMatchObject({ status: 'ERROR', failure: { code: 'config.invalid' } })
    expect(graded.failure!.message).toContain('tasks may use')
    expect(graded.grade).toBeUndefined()
  })

  test('evaluators cannot call hosts or read environment variables that are not allowed', async () => {
    const config = { base_url: 'http://127.0.0.1:1', model: 'm', rubric: 'r', api_key_env: 'MUST_NOT' }
    const judged = await stack.node.submit(orderOf(shellTask('true', { evaluator: { strategy: 'judge', config } })))
      .outcome
    expect(judged).toMatchObject({ status: 'ERROR', failure: { code: 'config.invalid' } })
    const asked = { url: 'http://169.254.169.254/latest', secret_env: 'MAY_SEE' }
    const called = await stack.node.submit(
      orderOf(shellTask('true', { evaluator: { strategy: 'http', config: asked } })),
    ).outcome
    expect(called.failure!.message).toContain('may not be called from this node')
  })
})
