import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { SessionOutcome } from '../../src/model/session-outcome.ts'
import type { TaskRequest } from '../../src/model/task.ts'
import type { RunningSession } from '../../src/node/node.ts'
import { StageWidths } from '../../src/node/session/stages.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { NodeStack, orderOf, shellTask } from '../support/node-stack.ts'

const INNOCENT = 20
/** Far longer than any step takes, so that no limit expires on a slow machine. */
const TIME_LIMIT_SECONDS = 1800

let scratch: string
let stack: NodeStack
beforeAll(async () => {
  scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-under-attack-'))
  const script = join(scratch, 'script.yaml')
  await writeFile(script, 'default: { text: well done }\n')
  const widths = StageWidths.parse({ init: 4, ready: 4, run: 12, postrun: 4, backlog: 8 })
  stack = await NodeStack.start({ script, widths, budgets: { init: TIME_LIMIT_SECONDS, evaluate: TIME_LIMIT_SECONDS } })
}, 60_000)
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await rm(scratch, { recursive: true, force: true })
})

/** Makes one to three calls and gets the reward `index / INNOCENT`. */
function innocentTask(index: number): TaskRequest {
  const calls = 1 + (index % 3)
  const agent = bashAgent(
    `for i in $(seq ${calls}); do call "question $i" > answer-$i; done
     grep -l "well done" answer-* | wc -l > answered; printf '%s' "${index / INNOCENT}" > earned`,
  )
  const check = `test "$(cat answered)" -eq ${calls} && cat earned > reward.txt || echo 0 > reward.txt`
  return shellTask(agent, {
    task_id: `innocent-${index}`,
    timeout_seconds: TIME_LIMIT_SECONDS,
    evaluator: { strategy: 'command', config: { command: check, reward: { file: 'reward.txt' } } },
  })
}

async function runInnocents(): Promise<object[]> {
  const tasks = Array.from({ length: INNOCENT }, (_, index) => innocentTask(index))
  const outcomes = await Promise.all(tasks.map((task) => stack.node.submit(orderOf(task)).outcome))
  return outcomes.map(factsOf)
}

function factsOf({ taskId, status, grade, counts, failure }: SessionOutcome): object {
  return {
    task: taskId,
    status,
    reward: grade?.outcome_reward,
    calls: counts?.calls,
    trained: counts?.tokens.trained,
    ...(failure !== undefined && { failure: `${failure.code}: ${failure.message}` }),
  }
}

/** Attacks that run until they are cancelled. Each sleeps between rounds, which bounds its load on the machine. */
const ENDLESS: Readonly<Record<string, { body: string; runtime?: object; needs?: 'memoryMb' }>> = {
  // Request bodies of eight megabytes in which every element is invalid, and endless output.
  flood: {
    body: `
      { printf '{"model":"tiny","messages":[1'; yes ',1' | head -c 8000000 | tr -d '\\n'; printf ']}'; } > body
      rest="\${OPENAI_BASE_URL#http://}"; host="\${rest%%/*}"; path="/\${rest#*/}/chat/completions"
      send() {
        exec 9<>"/dev/tcp/\${host%:*}/\${host#*:}" || return 1
        printf 'POST %s HTTP/1.1\\r\\nHost: %s\\r\\nAuthorization: Bearer %s\\r\\nContent-Type: application/json\\r\\nContent-Length: %d\\r\\nConnection: close\\r\\n\\r\\n' "$path" "$host" "$OPENAI_API_KEY" "$(stat -c %s body)" >&9
        cat body >&9; cat <&9 > /dev/null; exec 9<&-
      }
      while :; do for i in 1 2 3 4; do (send) & done; head -c 4000000 /dev/zero; wait; call round > a; sleep 0.2; done`,
  },
  bomb: { body: 'b() { b | b & }; while :; do b; sleep 0.5; done', runtime: { pids: 60 } },
  memory: {
    body: 'while :; do head -c 600000000 /dev/zero | tail -c 600000000 > /dev/null; call round > a; sleep 0.5; done',
    runtime: { memory_mb: 256 },
    needs: 'memoryMb',
  },
}

/** Ends by itself, so that its calls are built while other sessions run. */
const MANY_CALLS = 'for i in $(seq 400); do call "unrelated $i $RANDOM" > a; done'

function submitAttack(name: string, body: string, runtime: object = {}) {
  const agent = bashAgent(`call one > a; ${body}`)
  const task = shellTask(agent, { task_id: `attack-${name}`, timeout_seconds: TIME_LIMIT_SECONDS, runtime })
  return stack.node.submit(orderOf(task))
}

/** Resolves after the second call, which follows the first round, or when the session has ended. */
async function untilAttacking({ sessionId, outcome }: RunningSession): Promise<void> {
  const reader = createCallLogReader({ dir: join(stack.dir, 'sessions') })
  let isOver = false
  void outcome.then(() => (isOver = true))
  for (let calls = 0; calls < 2 && !isOver; await sleep(100))
    calls = await reader.load(sessionId).then(
      ({ turns }) => turns.length,
      () => 0,
    )
}

test('four hostile sessions do not change the rewards of twenty innocent sessions', { timeout: 900_000 }, async () => {
  const expected = await runInnocents()
  expect(expected[7]).toMatchObject({ status: 'COMPLETED', reward: 7 / INNOCENT, calls: 2 })

  const calling = submitAttack('calls', MANY_CALLS)
  const { limits } = (await stack.opened.runtimes.open(undefined)).runtime.capabilities
  const endless = Object.entries(ENDLESS).map(([name, { body, runtime, needs }]) =>
    submitAttack(name, body, needs === undefined || limits.includes(needs) ? runtime : {}),
  )
  const [flood, , memory] = endless
  for (const session of [calling, flood!, memory!]) await untilAttacking(session)

  expect(await runInnocents()).toEqual(expected)
  // The attacks ran until now; an attack that ran out of memory or processes may have ended its own session only.
  const left = new Set(stack.node.sessions.map(({ sessionId }) => sessionId))
  expect(endless.filter(({ sessionId }) => left.has(sessionId)).length).toBeGreaterThan(0)
  expect(['COMPLETED', 'ERROR']).toContain((await calling.outcome).status)
  for (const session of endless) session.cancel('The test is over.')
  await Promise.all(endless.map(({ outcome }) => outcome))
  // The node accepts new sessions.
  const after = await stack.node.submit(orderOf(innocentTask(3))).outcome
  expect(factsOf(after)).toEqual(expected[3])
})
