import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { makeTask, startTestServer, TestNode, type TestServer } from '../support/rollout-server.ts'

const main = join(import.meta.dirname, '../../src/cli/main.ts')

let at: TestServer
let node: TestNode
beforeAll(async () => {
  at = await startTestServer()
  node = await TestNode.join(at.client, 'n1')
})
afterAll(() => at?.[Symbol.asyncDispose]())

async function polar(...words: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('POLAR_')))
  const child = spawn(process.execPath, [main, ...words, '--server', at.server.url], { cwd: at.dir, env })
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'exit') as Promise<[number]>,
  ])
  return { code, stdout, stderr }
}

test('polar task rm deletes finished tasks and reports why the other tasks are not deleted', async () => {
  for (const id of ['one', 'two']) await at.client.submitTask({ body: makeTask(id, 2) })
  await node.drain()
  await at.client.submitTask({ body: makeTask('busy') })

  const removed = await polar('task', 'rm', 'one', 'busy', 'two', 'nobody')
  expect(removed.code).toBe(1)
  expect(removed.stdout).toMatch(
    /^one: deleted, with 2 sessions and 0\.\d MB\ntwo: deleted, with 2 sessions and 0\.\d MB\n$/,
  )
  expect(removed.stderr).toMatch(
    /^busy: not deleted\. Task "busy" is running; cancel it first.*\nnobody: not deleted\. Task "nobody" does not exist.*\n$/,
  )
  const files = await readdir(join(at.dir, 'files/results'), { recursive: true })
  expect(files.filter((name) => name.endsWith('.zst'))).toEqual([])

  expect(await polar('task', 'cancel', 'busy')).toMatchObject({ code: 0 })
  const asJson = await polar('task', 'rm', 'busy', 'busy', '--json')
  expect(asJson).toMatchObject({ code: 1, stderr: '' })
  const [first, second] = asJson.stdout.trim().split('\n')
  expect(JSON.parse(first!)).toEqual({ task_id: 'busy', deleted_sessions: 1, deleted_bytes: 0 })
  expect(JSON.parse(second!)).toMatchObject({ task_id: 'busy', error: { code: 'request.not-found', status: 404 } })

  expect(await polar('task', 'rm')).toMatchObject({ code: 2, stderr: expect.stringContaining('name a task') })
})
