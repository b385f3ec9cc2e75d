import { mkdir, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import type { TaskRequest } from '../../src/model/task.ts'
import type { Runtime } from '../../src/node/sandbox/runtimes/runtime.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { ANSWER_SCRIPT } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, orderOf, shellTask } from '../support/node-stack.ts'

const MARK = `polar-attack-${process.pid}`

let stack: NodeStack
let runtime: Runtime
let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-attack-'))
  stack = await NodeStack.start({ script: ANSWER_SCRIPT })
  runtime = (await stack.opened.runtimes.open(undefined)).runtime
}, 60_000)
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await rm(scratch, { recursive: true, force: true })
})

function run(task: TaskRequest): Promise<SessionOutcome> {
  return stack.node.submit(orderOf(task)).outcome
}

async function artifactsOf({ sessionId }: SessionOutcome): Promise<string> {
  const folder = join(stack.dir, 'sessions', sessionId, 'artifacts')
  const names = await readdir(folder, { recursive: true, withFileTypes: true })
  const files = names.filter((name) => name.isFile())
  const texts = await Promise.all(files.map((file) => readFile(join(file.parentPath, file.name), 'latin1')))
  return texts.join('\n')
}

/** Returns the processes on this machine whose environment contains the attacker's mark. */
async function marked(): Promise<string[]> {
  const found: string[] = []
  for (const pid of await readdir('/proc')) {
    if (!/^\d+$/.test(pid) || Number(pid) === process.pid) continue
    const environ = await readFile(`/proc/${pid}/environ`, 'utf8').catch(() => '')
    if (environ.split('\0').some((entry) => entry === `MARK=${MARK}`)) found.push(pid)
  }
  return found
}

describe('a hostile agent', { timeout: 120_000 }, () => {
  test('its background processes are killed before grading and cannot change tests, reward or files', async () => {
    const rewrites =
      'for i in $(seq 200); do touch planted; echo 1 > reward.txt; echo exit 0 > check.sh; sleep 0.05; done'
    const agent = bashAgent(
      `export MARK=${MARK}; call one > a; echo honest > work.txt
       (trap "" TERM HUP INT; setsid bash -c "trap '' TERM; sleep 1; ${rewrites}" >/dev/null 2>&1 &) & disown -a`,
    )
    const outcome = await run(
      shellTask(agent, {
        evaluator: {
          strategy: 'command',
          config: {
            command:
              'cat work.txt >&2; echo 0 > reward.txt; for i in 1 2 3 4 5 6; do sleep 0.5; test -e planted && exit 9; done; test "$(cat reward.txt)" = 0',
            reward: { file: 'reward.txt' },
          },
        },
      }),
    )
    expect(outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 0 } })
    expect(await artifactsOf(outcome)).toContain('honest')
    expect(await marked()).toEqual([])
  })

  test('its symbolic links cannot make the node read or write files outside the sandbox', async () => {
    const secret = join(scratch, 'secret.txt')
    const target = join(scratch, 'target.txt')
    await writeFile(secret, 'the-secret-of-the-host')
    await writeFile(target, 'untouched')
    const agent = bashAgent(
      `call one > a
       ln -s ${secret} answer.txt; ln -s ${target} stdout.log; ln -s ${scratch} evaluator; ln -s / root
       mkdir -p deep; ln -s ../../../../../../../../${secret} deep/relative; ln -s ${target} reward.txt
       rm -rf "$HOME/.polar"; ln -s ${scratch} "$HOME/.polar"; echo overwritten`,
    )
    const outcome = await run(
      shellTask(agent, {
        evaluator: {
          strategy: 'command',
          config: { command: 'cat answer.txt deep/relative; echo 0.25 > reward.txt', reward: { file: 'reward.txt' } },
        },
      }),
    )
    expect(outcome.status).toBe('COMPLETED')
    expect(outcome.grade!.outcome_reward).toBe(0.25)
    expect(await artifactsOf(outcome)).not.toContain('the-secret-of-the-host')
    expect(await readFile(target, 'utf8')).toBe('untouched')
    expect((await readdir(scratch)).toSorted()).toEqual(['secret.txt', 'target.txt'])
  })

  test('a link to the expected output gets reward 0, and the evidence names the link', async () => {
    const expected = join(scratch, 'expected')
    await mkdir(expected)
    await writeFile(join(expected, '1'), 'the-right-answer')
    const agent = bashAgent('call one > a; mkdir out; ln -s ../expected/1 out/1; ln -s /workspace/expected/1 out/2')
    const files = [{ source: expected, target: 'expected' }]
    const score = { outputs: ['out'], files, command: 'grep -qs right out/1 out/2 && echo 1 || echo 0' }
    const outcome = await run(
      shellTask(agent, { evaluator: { strategy: 'command', config: { command: 'true', score } } }),
    )
    expect(outcome).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 0 } })
    const direct = await run(
      shellTask(agent, {
        evaluator: { strategy: 'command', config: { files, command: 'grep -qs right out/1 out/2' } },
      }),
    )
    expect(direct.grade).toMatchObject({ outcome_reward: 0 })
    expect(await artifactsOf(direct)).toContain('the link points to nothing')
  })

  test('a workspace with too many files to copy gets reward 0 and counts as caused by the agent', async () => {
    const agent = bashAgent('call one > a; for i in $(seq 3000); do : > file-$i; done')
    const config = { command: 'true', max_files: 1000 }
    const outcome = await run(shellTask(agent, { evaluator: { strategy: 'command', config } }))
    expect(outcome.grade).toMatchObject({ outcome_reward: 0, metadata: { failure: 'workspace.too-large' } })
  })

  test('a fork bomb ends at the session timeout and does not affect a concurrent session', async ({ skip }) => {
    if (!runtime.capabilities.limits.includes('pids')) skip('this machine cannot limit the number of processes')
    const bomb = bashAgent(`export MARK=${MARK}; call one > a; b() { b | b & }; b; sleep 600`)
    const [attacker, concurrent] = await Promise.all([
      run(shellTask(bomb, { timeout_seconds: 15, runtime: { pids: 100 } })),
      run(shellTask(bashAgent('sleep 2; call one > done'), { evaluator: { strategy: 'session_completed' } })),
    ])
    expect(concurrent).toMatchObject({ status: 'COMPLETED', grade: { outcome_reward: 1 }, counts: { calls: 1 } })
    expect(['TIMEOUT', 'ERROR', 'COMPLETED']).toContain(attacker.status)
    expect(attacker.counts!.calls).toBe(1)
    expect(await marked()).toEqual([])
  })

  test('ten gigabytes of output are truncated to the artifact limit without using memory', async () => {
    const before = process.memoryUsage.rss()
    let most = before
    const timer = setInterval(() => (most = Math.max(most, process.memoryUsage.rss())), 50)
    const agent = bashAgent('call one > a; echo begun >&2; head -c 10737418240 /dev/zero')
    // On a busy machine the session may time out before all output is written; the limits hold in both cases.
    const outcome = await run(shellTask(agent, { timeout_seconds: 60 }))
    clearInterval(timer)
    expect(['COMPLETED', 'TIMEOUT']).toContain(outcome.status)
    const kept = outcome.artifacts.find(({ path }) => path === 'agent/stdout.log')!
    expect(kept.bytes).toBeLessThanOrEqual(16 * 1024 * 1024)
    expect(kept.isCut).toBe(true)
    expect(await artifactsOf(outcome)).toContain('begun')
    expect(most - before).toBeLessThan(300 * 1024 * 1024)
  })

  test('model calls after the session timeout are neither answered nor recorded', async () => {
    const agent = bashAgent(
      `export MARK=${MARK}; trap "" TERM INT HUP; call one > a
       setsid bash -c "while :; do : > /tmp/alive; done" & while :; do call again >> b || sleep 0.1; done`,
    )
    const outcome = await run(shellTask(agent, { timeout_seconds: 4 }))
    expect(outcome).toMatchObject({ status: 'TIMEOUT', failure: { code: 'session.agent-timeout' } })
    const reader = createCallLogReader({ dir: join(stack.dir, 'sessions') })
    const then = await reader.load(outcome.sessionId)
    await sleep(1500)
    const now = await reader.load(outcome.sessionId)
    expect(now.turns.length).toBe(then.turns.length)
    expect(now.complete).toBe(true)
    expect(await marked()).toEqual([])
  })

  test('it cannot reach the control API, the engine or another session, even with their addresses', async () => {
    const victim = stack.node.submit(orderOf(shellTask(bashAgent('call mine > a; echo "$OPENAI_API_KEY"; sleep 6'))))
    const { port } = new URL(stack.opened.gateway.url)
    const enginePort = new URL(stack.engine.info.url).port
    const isRunning = (): boolean =>
      stack.events.some(({ session_id, status }) => session_id === victim.sessionId && status === 'RUNNING')
    while (!isRunning()) await sleep(20)
    const attack = bashAgent(
      `call mine > a
       for port in ${port} ${enginePort}; do (exec 8<>/dev/tcp/127.0.0.1/$port) 2>/dev/null && echo "REACHED $port"; done
       (exec 8<>/dev/tcp/169.254.169.254/80) 2>/dev/null && echo "REACHED metadata"
       OPENAI_BASE_URL="\${OPENAI_BASE_URL%/s/*}/s/${victim.sessionId}/v1" call "not mine" | head -1
       OPENAI_BASE_URL="\${OPENAI_BASE_URL%/s/*}/control/v1" call "not mine" | head -1`,
    )
    const attacker = await run(shellTask(attack))
    const output = await artifactsOf(attacker)
    if (runtime.capabilities.networks.includes('none')) expect(output).not.toContain('REACHED')
    expect(output.match(/HTTP\/1\.1 (\d+)/g)).toEqual(['HTTP/1.1 401', 'HTTP/1.1 404'])
    const outcome = await victim.outcome
    expect(outcome.counts!.calls).toBe(1)
    expect(attacker.counts!.calls).toBe(1)
  })
})
