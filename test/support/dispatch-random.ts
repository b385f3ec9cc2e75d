import fc from 'fast-check'
import { expect } from 'vitest'
import type { FailureCode } from '../../src/model/failure.ts'
import type { Lease, RetriedStatus } from '../../src/store/dispatch/port.ts'
import { listTaskSessions } from '../../src/store/dispatch/queries/sessions.ts'
import { listEndings, listTasks } from '../../src/store/dispatch/queries/tasks.ts'
import { putQuota } from '../../src/store/dispatch/commands/put-quota.ts'
import { auditTables } from './dispatch-tables.ts'
import { type DispatchDriver, makeRegistration, makeTask } from './dispatch-driver.ts'
import { countUsable, countValid, DispatchModel, type ModelEnding } from './dispatch-model.ts'

const anyPlace = fc.nat({ max: 30 })
const anyNode = fc.constantFrom('n1', 'n2', 'n3')
const anyOwner = fc.constantFrom('ann', 'ann', 'bob')
const anyEnding = fc.constantFrom<ModelEnding>(
  'well',
  'well',
  'well',
  'out-of-time',
  'runtime.gone',
  'harness.exit-nonzero',
  'runtime.unsupported',
  'evaluator.crashed',
)
const anyEarlyStop = fc.option(fc.constantFrom(1, 2), { nil: undefined })
const anyLimit = fc.option(fc.integer({ min: 0, max: 12 }))

const anyStep = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('submit' as const),
      owner: anyOwner,
      samples: fc.integer({ min: 1, max: 5 }),
      priority: fc.constantFrom(0, 0, 50),
      earlyStop: anyEarlyStop,
      maxFailures: fc.integer({ min: 1, max: 3 }),
    }),
  },
  {
    weight: 8,
    arbitrary: fc.record({
      kind: fc.constant('take' as const),
      node: anyNode,
      slots: fc.nat({ max: 4 }),
      holding: fc.constantFrom('none', 'none', 'all', 'some'),
    }),
  },
  {
    weight: 14,
    arbitrary: fc.record({ kind: fc.constant('end' as const), node: anyNode, place: anyPlace, ending: anyEnding }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('renew' as const), node: anyNode }) },
  fc.record({ kind: fc.constant('release' as const), node: anyNode, place: anyPlace }),
  fc.record({ kind: fc.constant('lose' as const), node: anyNode }),
  fc.record({
    kind: fc.constant('join' as const),
    node: anyNode,
    bootId: fc.constantFrom('one', 'two'),
    replaces: fc.constantFrom(undefined, 'one', 'two'),
    place: anyPlace,
  }),
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('cancel-task' as const), place: anyPlace, register: fc.boolean() }),
  },
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('delete-task' as const), place: anyPlace, isCleared: fc.boolean() }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('cancel-session' as const), place: anyPlace }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('update' as const),
      place: anyPlace,
      priority: fc.option(fc.constantFrom(0, 50), { nil: undefined }),
      earlyStop: fc.constantFrom(undefined, null, 1, 2),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('retry-task' as const),
      place: anyPlace,
      statuses: fc.subarray<RetriedStatus>(['ERROR', 'TIMEOUT', 'CANCELLED'], { minLength: 1 }),
    }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('retry-session' as const), place: anyPlace }) },
  fc.record({ kind: fc.constant('quota' as const), owner: anyOwner, maxQueued: anyLimit, maxRunning: anyLimit }),
)
export type Step = typeof anyStep extends fc.Arbitrary<infer T> ? T : never

export const anySteps = fc.array(anyStep, { minLength: 20, maxLength: 60, size: 'max' })

interface Play {
  driver: DispatchDriver
  model: DispatchModel
  /** All leases so far; steps also use ended leases. */
  leases: { lease: Lease; node: string }[]
  submitted: number
}

/** Applies the steps to dispatch and to the model, and checks that results and final states agree. */
export async function playSteps(driver: DispatchDriver, steps: readonly Step[]): Promise<void> {
  const play: Play = { driver, model: new DispatchModel(), leases: [], submitted: 0 }
  for (const step of steps) await playStep(play, step)
  const { db } = driver.database
  expect(await auditTables(driver.database)).toEqual([])
  const { tasks } = await listTasks(db, { limit: 1000 })
  expect(new Set(tasks.map(({ taskId }) => taskId))).toEqual(new Set(play.model.tasks.keys()))
  for (const { taskId, status, valid, usable, ended, endings } of tasks) {
    const task = play.model.tasks.get(taskId)!
    expect({ status, valid, usable, ended, endings }).toEqual({
      status: task.status,
      valid: countValid(task),
      usable: countUsable(task),
      ended: task.sessions.filter(({ state }) => state === 'ended').length,
      endings: task.endings,
    })
    const { sessions } = await listTaskSessions(db, taskId)
    expect(sessions.map(({ sessionId: id, status: word, attempt }) => ({ id, word, attempt }))).toEqual(
      task.sessions.map(({ id, status: word, attempt }) => ({ id, word, attempt })),
    )
    const current = (await listEndings(db, taskId, { limit: 1000 })).filter(({ isCurrent }) => isCurrent)
    expect(current).toHaveLength(ended)
  }
}

async function playStep(play: Play, step: Step): Promise<void> {
  const { driver, model, leases } = play
  const { dispatch, database } = driver
  switch (step.kind) {
    case 'submit':
      return submit(play, step)
    case 'take': {
      const own = leases.filter(({ node }) => node === step.node).map(({ lease }) => lease)
      const holding = step.holding === 'none' ? undefined : step.holding === 'all' ? own : own.slice(1)
      if (holding !== undefined) model.takeBack(step.node, holding)
      const { orders } = await dispatch.lease(step.node, { freeSlots: step.slots, labels: [], holding })
      const taken = orders.map(({ order: { sessionId, attempt } }) => ({ sessionId, attempt }))
      leases.push(...taken.map((lease) => ({ lease, node: step.node })))
      return model.take(step.node, step.slots, taken)
    }
    case 'end': {
      const entry = leases[step.place % leases.length]
      if (entry === undefined) return
      // Mostly by the node that holds the lease.
      const node = step.place % 4 === 0 ? step.node : entry.node
      const { ending } = step
      const code: FailureCode | undefined = ending === 'well' || ending === 'out-of-time' ? undefined : ending
      const status = ending === 'out-of-time' && { status: 'TIMEOUT' as const }
      const answer = await driver.end(entry.lease, code, { nodeId: node, ...status })
      return expect(answer).toEqual(model.accept(node, entry.lease, ending))
    }
    case 'renew': {
      const all = leases.map(({ lease }) => lease)
      const answers = await driver.renew(step.node, all)
      return expect(answers).toEqual(all.map((lease) => model.renew(step.node, lease)))
    }
    case 'release': {
      const some = leases.slice(step.place % (leases.length + 1)).map(({ lease }) => lease)
      const given = await dispatch.release(step.node, some)
      return expect(given.toSorted(byId)).toEqual(model.release(step.node, some).toSorted(byId))
    }
    case 'lose':
      return expect(await dispatch.loseNode(step.node)).toBe(model.loseNode(step.node))
    case 'join': {
      const holding = leases.slice(step.place % (leases.length + 1)).map(({ lease }) => lease)
      const { node, bootId, replaces } = step
      const joined = await dispatch.join({
        registration: makeRegistration(node),
        labels: [],
        bootId,
        replaces,
        holding,
      })
      return expect(joined).toEqual(model.join(node, bootId, replaces, holding))
    }
    case 'cancel-task': {
      const id = `t${step.place}`
      const status = await dispatch.cancelTask(id, { registerIfMissing: step.register })
      return expect(status).toBe(model.cancelTask(id, step.register))
    }
    case 'delete-task': {
      // Mostly an ended task: running tasks must be rejected.
      const over = [...model.tasks.values()].filter(({ status }) => status !== 'running')
      const id =
        (step.place % 4 === 0 ? undefined : over[step.place % over.length]?.id) ??
        `t${step.place % (play.submitted + 1)}`
      const { kind } = await dispatch.deleteTask(id)
      expect(kind).toBe(model.deleteTask(id))
      if (kind === 'deleted') {
        expect(await dispatch.enqueue([{ task: makeTask(id, 1) }])).toEqual([{ taskId: id, kind: 'deleted' }])
      }
      if (!step.isCleared) return
      while ((await dispatch.clearDeleted()) !== undefined);
      return model.clearDeleted()
    }
    case 'cancel-session': {
      const id = sessionAt(model, step.place)
      return expect(await dispatch.cancelSession(id)).toBe(model.cancelSession(id))
    }
    case 'update': {
      const { place, priority, earlyStop } = step
      const id = `t${place % (play.submitted + 1)}`
      return expect(await dispatch.updateTask(id, { priority, earlyStop })).toBe(
        model.update(id, { priority, earlyStop }),
      )
    }
    case 'retry-task': {
      const id = `t${step.place % (play.submitted + 1)}`
      return expect(await dispatch.retryTask(id, step.statuses)).toEqual(model.retryTask(id, step.statuses))
    }
    case 'retry-session': {
      const id = sessionAt(model, step.place)
      return expect(await dispatch.retrySession(id)).toEqual({ kind: model.retrySession(id) })
    }
    case 'quota': {
      const { owner, maxQueued, maxRunning } = step
      await putQuota(database.db, owner, { maxQueued, maxRunning })
      model.quotas.set(owner, { maxQueued, maxRunning })
    }
  }
}

async function submit(play: Play, step: Extract<Step, { kind: 'submit' }>): Promise<void> {
  const { driver, model } = play
  const id = `t${play.submitted}`
  play.submitted += 1
  const { owner, samples, priority, maxFailures } = step
  const earlyStop = step.earlyStop === undefined ? undefined : Math.min(step.earlyStop, samples)
  const task = makeTask(id, samples, { dispatch_priority: priority, early_stop_min_usable_sessions: earlyStop })
  const made = { id, owner, samples, priority, earlyStop, maxFailures }
  const kind = model.submit(made)
  expect(await driver.dispatch.enqueue([{ task, maxFailures }], { owner })).toEqual([{ taskId: id, kind }])
  const { sessions } = await listTaskSessions(driver.database.db, id)
  if (kind === 'created') {
    model.begin(
      made,
      sessions.map(({ sessionId }) => sessionId),
    )
  }
}

function sessionAt({ sessions }: DispatchModel, place: number): string {
  return [...sessions.keys()][place] ?? 'ses_none'
}

function byId(a: Lease, b: Lease): number {
  return a.sessionId < b.sessionId ? -1 : 1
}
