import { readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, orderOf, shellTask } from '../support/node-stack.ts'

let scratch: string
let stack: NodeStack
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-node-gateway-'))
  const script = join(scratch, 'script.yaml')
  await writeFile(script, 'default: { text: fine, per_token_ms: 50 }')
  stack = await NodeStack.start({ script })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  expect(gatewayPids()).toEqual([])
  await rm(scratch, { recursive: true, force: true })
})

function gatewayPids(): number[] {
  return readdirSync('/proc').flatMap((name) => {
    try {
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8')
      const parent = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
      const isGateway = readFileSync(`/proc/${name}/cmdline`, 'utf8').includes('gateway-shard')
      return parent === process.pid && isGateway ? [Number(name)] : []
    } catch {
      return []
    }
  })
}

test('a session completes and is graded although the gateway process is killed twice during the run', async () => {
  const calls = bashAgent('for i in $(seq 12); do call "Question $i" > a || true; done; call last > b; touch done')
  const evaluator = { strategy: 'command', config: { command: 'test -e done' } }
  const session = stack.node.submit(orderOf(shellTask(calls, { evaluator })))
  for (const atLeast of [2, 5]) {
    await expect.poll(() => stack.node.progressOf(session.sessionId)?.calls ?? 0).toBeGreaterThanOrEqual(atLeast)
    const [pid] = gatewayPids()
    process.kill(pid!, 'SIGKILL')
    await expect.poll(() => gatewayPids().some((other) => other !== pid)).toBe(true)
  }
  const outcome = await session.outcome
  expect(outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
  const reader = createCallLogReader({ dir: join(stack.dir, 'sessions') })
  const { turns, complete, incompleteReasons } = await reader.load(outcome.sessionId)
  expect(incompleteReasons).toEqual([])
  expect(complete).toBe(true)
  const failures = turns.flatMap(({ failure }) => failure?.code ?? [])
  expect(failures.filter((code) => code !== 'session.gateway-lost')).toEqual([])
  expect(outcome.counts!.calls).toBeGreaterThanOrEqual(turns.length - failures.length)
})
