import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import type { Sandbox } from '../../src/node/sandbox/runtimes/runtime.ts'
import { describeEvaluator } from '../../src/trajectory/evaluators/evaluator.contract.ts'

/** Waits until a command has created the file. */
async function waitForFile(sandbox: Sandbox | undefined, path: string): Promise<void> {
  for (;;) {
    const found = await sandbox?.readFile(path, { maxBytes: 100 }).catch(() => undefined)
    if (found !== undefined) return
    await sleep(20)
  }
}

describeEvaluator('session_completed', {
  setUp: () => ({
    config: { kind: 'session_completed' },
    cases: [
      { title: 'an agent that exited with 0', agent: 'true', reward: 1 },
      { title: 'an agent that exited with 3', agent: 'exit 3', reward: 0 },
      { title: 'an agent that exceeded its time limit', ending: { kind: 'timeout', exitCode: null }, reward: 0 },
    ],
  }),
})

describeEvaluator('command', {
  async setUp(dir) {
    await writeFile(join(dir, 'check.sh'), '[ "$(cat answer)" = 42 ]')
    const config = {
      kind: 'command',
      max_files: 1000,
      files: [{ source: join(dir, 'check.sh'), target: 'tests/check.sh' }],
      command: 'sh tests/check.sh',
    }
    return {
      config,
      cases: [
        { title: 'a correct answer', agent: 'echo 42 > answer', reward: 1 },
        { title: 'a wrong answer', agent: 'echo 41 > answer', reward: 0 },
        { title: 'no answer', reward: 0 },
        {
          title: 'tests that were replaced',
          agent: 'mkdir tests; echo exit 0 > tests/check.sh; chmod 444 tests/check.sh',
          reward: 0,
        },
        {
          title: 'tests that were replaced by a link',
          agent: 'mkdir evil; echo exit 0 > evil/check.sh; ln -s evil tests',
          reward: 0,
        },
      ],
      slow: {
        config: { ...config, command: 'touch begun; sleep 600' },
        begun: (sandbox) => waitForFile(sandbox, 'begun'),
      },
    }
  },
})

describeEvaluator('weighted', {
  async setUp(dir) {
    await writeFile(join(dir, 'expected'), '42\n')
    const files = [{ source: join(dir, 'expected'), target: 'expected' }]
    const weighted = (command: string) => ({
      kind: 'weighted',
      parts: [
        { name: 'ended', weight: 0.25, strategy: 'session_completed' },
        { name: 'tests', weight: 0.75, strategy: 'command', config: { command, files, max_files: 1000 } },
      ],
    })
    return {
      config: weighted('cmp answer expected'),
      cases: [
        { title: 'a correct answer and exit code 0', agent: 'echo 42 > answer', reward: 1 },
        { title: 'a wrong answer', agent: 'echo 41 > answer', reward: 0.25 },
        { title: 'a correct answer and exit code 1', agent: 'echo 42 > answer; exit 1', reward: 0.75 },
        { title: 'a link to the expected answer', agent: 'ln -s expected answer', reward: 0.25 },
      ],
      slow: {
        config: weighted('touch begun; sleep 600'),
        begun: (sandbox) => waitForFile(sandbox, 'begun'),
      },
    }
  },
})

/** Starts a grading service that answers every request, except on paths that begin with /slow. */
async function startService(toAnswer: (body: string) => unknown) {
  let arrived = Promise.withResolvers<void>()
  const server = createServer((request, response) => {
    const pieces: Buffer[] = []
    request.on('data', (piece: Buffer) => pieces.push(piece))
    request.on('end', () => {
      arrived.resolve()
      if (request.url?.startsWith('/slow')) return
      response.end(JSON.stringify(toAnswer(Buffer.concat(pieces).toString())))
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async begun() {
      await arrived.promise
      arrived = Promise.withResolvers<void>()
    },
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      server.close()
    },
  }
}

describeEvaluator('http', {
  async setUp() {
    const service = await startService((body) => {
      const { files } = JSON.parse(body) as { files: { path: string; size: number }[] }
      return { outcome_reward: files.some(({ path, size }) => path === 'answer' && size === 3) ? 1 : 0 }
    })
    const config = {
      kind: 'http',
      url: `${service.url}/grade`,
      files: { max_files: 1000, include: ['answer', 'planted'] },
    }
    return {
      config,
      cases: [
        { title: 'an answer', agent: 'echo 42 > answer', reward: 1 },
        { title: 'no answer', reward: 0 },
        { title: 'a link to an answer', agent: 'echo 42 > other; ln -s other answer', reward: 1 },
        { title: 'a link to a file of the machine', agent: 'echo 42 > /tmp/other; ln -s /tmp/other answer', reward: 0 },
      ],
      slow: { config: { ...config, url: `${service.url}/slow` }, begun: service.begun },
      [Symbol.asyncDispose]: service[Symbol.asyncDispose],
    }
  },
})

describeEvaluator('judge', {
  async setUp() {
    const verdict = (score: number) => JSON.stringify({ quality: { reason: 'As it is.', score } })
    const script = { scenarios: { good: [{ text: verdict(10) }], middling: [{ text: verdict(5) }] } }
    const engine = await startEngine({ script: JSON.stringify(script) })
    const silent = await startService(() => ({}))
    const config = {
      kind: 'judge',
      base_url: engine.url,
      model: 'tiny',
      rubric: 'Is it good?',
      files: { max_files: 1000, include: ['answer', 'planted'] },
    }
    return {
      config,
      cases: [
        { title: 'good work', agent: 'echo 42 > answer', task: { instruction: 'SCRIPT:good' }, reward: 1 },
        { title: 'middling work', task: { instruction: 'SCRIPT:middling' }, reward: 0.5 },
      ],
      slow: { config: { ...config, base_url: `${silent.url}/slow` }, begun: silent.begun },
      async [Symbol.asyncDispose]() {
        await engine[Symbol.asyncDispose]()
        await silent[Symbol.asyncDispose]()
      },
    }
  },
})
