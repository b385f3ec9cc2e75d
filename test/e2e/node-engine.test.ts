import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { expect, onTestFinished, test } from 'vitest'
import { randomIds } from '../../src/lib/random-ids.ts'
import { runTask } from '../../src/node/run-task.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, shellTask } from '../support/node-stack.ts'

const main = join(import.meta.dirname, '../../src/cli/main.ts')

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  return port
}

/** Starts an engine in its own process, so that it can be killed. */
async function startEngine(port: number): Promise<ChildProcess> {
  const child = spawn(process.execPath, [main, 'engine', '--port', String(port)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  onTestFinished(() => void child.kill('SIGKILL'))
  await once(child.stdout, 'data')
  return child
}

test('a session whose engine is killed fails with an upstream error, keeps its captured calls, gets no reward and is refilled', async () => {
  const port = await freePort()
  const engine = await startEngine(port)
  await using stack = await NodeStack.start({ upstream: `http://127.0.0.1:${port}` })
  const agent = bashAgent(
    'call one > first.txt; for i in $(seq 30); do sleep 0.1; call again > second.txt; grep -q "HTTP/1.1 200" second.txt || exit 1; done; touch done',
  )
  const task = shellTask(agent, {
    evaluator: { strategy: 'command', config: { command: 'test -e done' } },
    timeout_seconds: 250,
  })
  const killed = new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      const running = stack.events.find(({ status }) => status === 'RUNNING')
      if (running === undefined || (stack.node.progressOf(running.session_id)?.calls ?? 0) < 2) return
      clearInterval(timer)
      engine.kill('SIGKILL')
      resolve()
    }, 20)
  })
  let restarted: Promise<unknown> | undefined
  const run = await runTask(stack.node, task, {
    ids: randomIds(Date.now),
    maxRefills: 100,
    signal: AbortSignal.timeout(280_000),
    onOutcome: () => void (restarted ??= startEngine(port)),
  })
  await Promise.all([killed, restarted])
  const [first, ...others] = run.outcomes
  expect(first).toMatchObject({ status: 'ERROR', failure: { code: expect.stringMatching(/^upstream\./) } })
  expect(first!.grade).toBeUndefined()
  expect(first!.counts!.trainedCalls).toBeGreaterThan(0)
  // A refill that starts before the engine is restarted fails too and is refilled in turn.
  expect(others.at(-1)).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 } })
  expect(run.valid).toBe(1)
})
