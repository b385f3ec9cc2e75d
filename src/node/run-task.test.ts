import { expect, test } from 'vitest'
import { RolloutError, type FailureCode } from '../model/failure.ts'
import { isValid } from '../model/refill.ts'
import type { SessionOrder } from '../model/session-order.ts'
import type { SessionOutcome } from '../model/session-outcome.ts'
import { TaskRequest } from '../model/task.ts'
import type { RunningSession } from './node.ts'
import { runTask, type TaskRun } from './run-task.ts'

/** The endings of sessions in the order of their submission; the last ending repeats. */
type Endings = readonly ('ok' | FailureCode)[]

class FakeNode {
  readonly orders: SessionOrder[] = []
  readonly cancelled: string[] = []
  readonly #endings: Endings
  /** If set, sessions end only when they are cancelled. */
  readonly #hang: boolean

  constructor(endings: Endings, { hang = false } = {}) {
    this.#endings = endings
    this.#hang = hang
  }

  submit(order: SessionOrder): RunningSession {
    const { sessionId } = order
    const ending = this.#endings[this.orders.length] ?? this.#endings.at(-1)!
    this.orders.push(order)
    const { promise, resolve } = Promise.withResolvers<SessionOutcome>()
    if (!this.#hang) resolve(outcomeOf(order, ending))
    const cancel = (reason: string): void => {
      this.cancelled.push(reason)
      resolve(outcomeOf(order, 'session.cancelled'))
    }
    return { sessionId, attempt: order.attempt, status: 'REGISTERED', outcome: promise, cancel }
  }
}

function outcomeOf({ sessionId, attempt, task }: SessionOrder, ending: 'ok' | FailureCode): SessionOutcome {
  return {
    schemaVersion: 1,
    sessionId,
    taskId: task.task_id,
    attempt,
    nodeId: 'node',
    status: ending === 'ok' ? 'COMPLETED' : 'ERROR',
    ...(ending === 'ok' ? {} : { failure: new RolloutError(ending, 'It happens.').failure }),
    timing: {},
    artifacts: [],
    endedAt: 0,
  }
}

const NEVER = new AbortController().signal

async function runWith(
  endings: Endings,
  { samples = 2, maxRefills = 10, signal = NEVER } = {},
): Promise<TaskRun & { node: FakeNode }> {
  const node = new FakeNode(endings)
  const task = taskOf(samples)
  return { ...(await runTask(node, task, { ids: counter(), maxRefills, signal, backoffMs: 0 })), node }
}

function taskOf(samples: number): TaskRequest {
  return TaskRequest.parse({ task_id: 'task', instruction: '', num_samples: samples, agent: { harness: 'pi' } })
}

function counter(): { next(prefix: string): string } {
  let count = 0
  return { next: (prefix) => `${prefix}_${++count}` }
}

test('runTask() starts num_samples sessions with different ids', async () => {
  const { node, valid, outcomes } = await runWith(['ok'], { samples: 3 })
  expect(node.orders.map(({ sessionId, attempt }) => [sessionId, attempt])).toEqual([
    ['ses_1', 1],
    ['ses_2', 1],
    ['ses_3', 1],
  ])
  expect([valid, outcomes.length]).toEqual([3, 3])
})

test.each<FailureCode>([
  'upstream.out-of-memory',
  'runtime.gone',
  'runtime.out-of-disk',
  'harness.no-answer',
  'evaluator.crashed',
  'session.init-timeout',
  'store.unavailable',
])('runTask() refills a session that failed with %s', async (code) => {
  const { node, valid, outcomes } = await runWith([code, 'ok'])
  expect([node.orders.length, valid, outcomes.length]).toEqual([3, 2, 3])
})

test.each<FailureCode>([
  'session.agent-timeout',
  'harness.exit-nonzero',
  'harness.out-of-memory',
  'request.context-overflow',
])('runTask() counts a session that ended with %s as valid', async (code) => {
  const { node, valid } = await runWith([code, 'ok'])
  expect([node.orders.length, valid]).toEqual([2, 2])
})

test.each<FailureCode>(['config.invalid', 'runtime.unsupported', 'upstream.refused'])(
  'runTask() starts no refill after %s, which would occur again',
  async (code) => {
    const { node, valid } = await runWith([code], { samples: 4 })
    expect([node.orders.length, valid]).toEqual([4, 0])
  },
)

test('runTask() stops all refills of a task after a failure that the task caused', async () => {
  const { node } = await runWith(['config.invalid', 'runtime.gone'])
  expect(node.orders).toHaveLength(2)
})

test.each([
  [0, 2],
  [1, 3],
  [5, 7],
])('runTask() with %i refills starts at most %i sessions', async (maxRefills, sessions) => {
  const { node, valid, outcomes } = await runWith(['runtime.gone'], { maxRefills })
  expect([node.orders.length, valid, outcomes.length]).toEqual([sessions, 0, sessions])
})

test('runTask() refills a failed refill', async () => {
  const { node, valid } = await runWith(['runtime.gone', 'ok', 'upstream.reset', 'ok'])
  expect([node.orders.length, valid]).toEqual([4, 2])
})

test('runTask() cancels running sessions on an interrupt, and starts no refill', async () => {
  const node = new FakeNode(['ok'], { hang: true })
  const interrupt = new AbortController()
  const running = runTask(node, taskOf(3), { ids: counter(), maxRefills: 10, signal: interrupt.signal })
  interrupt.abort()
  const { outcomes, valid } = await running
  expect(node.cancelled).toHaveLength(3)
  expect([node.orders.length, outcomes.length, valid]).toEqual([3, 3, 0])
})

test('runTask() starts nothing after an interrupt', async () => {
  const { node } = await runWith(['ok'], { signal: AbortSignal.abort() })
  expect(node.orders).toEqual([])
})

test('runTask() reports each outcome when its session ends', async () => {
  const told: string[] = []
  await runTask(new FakeNode(['runtime.gone', 'ok']), taskOf(1), {
    ids: counter(),
    maxRefills: 1,
    signal: NEVER,
    onOutcome: ({ sessionId, status }) => told.push(`${sessionId} ${status}`),
  })
  expect(told).toEqual(['ses_1 ERROR', 'ses_2 COMPLETED'])
})

test('isValid() is false for a cancelled session, whose result is unknown', () => {
  const order: SessionOrder = { schemaVersion: 1, sessionId: 'ses_1', attempt: 1, task: taskOf(1) }
  expect(isValid(outcomeOf(order, 'session.cancelled'))).toBe(false)
})
