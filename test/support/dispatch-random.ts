import fc from 'fast-check'
import { expect } from 'vitest'
import type { FailureCode } from '../../src/model/failure.ts'
import type { Lease } from '../../src/store/dispatch.ts'
import { listSessions, listTasks } from '../../src/store/dispatch/query.ts'
import { auditBooks } from './dispatch-books.ts'
import { type DispatchDesk, makeTask } from './dispatch-desk.ts'
import { DispatchModel } from './dispatch-model.ts'

const anyPlace = fc.nat({ max: 30 })
const anyNode = fc.constantFrom('n1', 'n2', 'n3')
const anyCode = fc.constantFrom<FailureCode | undefined>(
  undefined,
  undefined,
  undefined,
  'runtime.gone',
  'harness.exit-nonzero',
  'runtime.unsupported',
  'evaluator.crashed',
)

const anyStep = fc.oneof(
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('submit' as const),
      samples: fc.integer({ min: 1, max: 5 }),
      priority: fc.constantFrom(0, 0, 50),
      earlyStop: fc.option(fc.constantFrom(1, 2), { nil: undefined }),
      maxFailures: fc.integer({ min: 1, max: 3 }),
    }),
  },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('take' as const), node: anyNode, slots: fc.nat({ max: 4 }) }) },
  {
    weight: 7,
    arbitrary: fc.record({ kind: fc.constant('end' as const), node: anyNode, place: anyPlace, code: anyCode }),
  },
  fc.record({ kind: fc.constant('renew' as const), node: anyNode }),
  fc.record({ kind: fc.constant('release' as const), node: anyNode, place: anyPlace }),
  fc.record({ kind: fc.constant('lose' as const), node: anyNode }),
  fc.record({ kind: fc.constant('cancel-task' as const), place: anyPlace }),
  fc.record({ kind: fc.constant('cancel-session' as const), place: anyPlace }),
)
export type Step = typeof anyStep extends fc.Arbitrary<infer T> ? T : never

export const anySteps = fc.array(anyStep, { minLength: 20, maxLength: 60, size: 'max' })

/** Does the same to both, and sees that both answer the same and end up the same. */
export async function playSteps(desk: DispatchDesk, steps: readonly Step[]): Promise<void> {
  const model = new DispatchModel()
  /** Everything that was ever leased: what is over by now is tried as well. */
  const leases: { lease: Lease; node: string }[] = []
  for (const step of steps) await play(desk, model, leases, step)
  expect(await auditBooks(desk.database)).toEqual([])
  for (const { taskId, status, valid, usable, ended } of (await listTasks(desk.database.db, { limit: 1000 })).tasks) {
    const task = model.tasks.get(taskId)!
    const over = task.sessions.filter(({ state }) => state === 'ended').length
    expect({ status, valid, usable, ended }).toEqual({
      status: task.status,
      valid: task.valid,
      usable: task.usable,
      ended: over,
    })
    const sessions = await listSessions(desk.database.db, taskId)
    expect(sessions.map(({ sessionId: id, status: word, attempt }) => ({ id, word, attempt }))).toEqual(
      task.sessions.map(({ id, status: word, attempt }) => ({ id, word, attempt })),
    )
  }
}

async function play(
  desk: DispatchDesk,
  model: DispatchModel,
  leases: { lease: Lease; node: string }[],
  step: Step,
): Promise<void> {
  const { dispatch, database } = desk
  switch (step.kind) {
    case 'submit': {
      const id = `t${model.tasks.size}`
      const { samples, priority, maxFailures } = step
      const earlyStop = step.earlyStop === undefined ? undefined : Math.min(step.earlyStop, samples)
      const task = makeTask(id, samples, { dispatch_priority: priority, early_stop_min_usable_sessions: earlyStop })
      expect(await dispatch.enqueue([{ task, maxFailures }])).toEqual([{ taskId: id, kind: 'created' }])
      const sessions = await listSessions(database.db, id)
      const ids = sessions.map(({ sessionId }) => sessionId)
      return model.submit({ id, priority, earlyStop, maxFailures }, ids)
    }
    case 'take': {
      const taken = await desk.take(step.slots, step.node)
      leases.push(...taken.map((lease) => ({ lease, node: step.node })))
      return model.take(step.node, step.slots, taken)
    }
    case 'end': {
      const entry = leases[step.place % leases.length]
      if (entry === undefined) return
      // Mostly by the one who has it.
      const node = step.place % 4 === 0 ? step.node : entry.node
      const answer = await desk.end(entry.lease, step.code, { nodeId: node })
      return expect(answer).toEqual(model.accept(node, entry.lease, step.code))
    }
    case 'renew': {
      const all = leases.map(({ lease }) => lease)
      const answers = await dispatch.renew(step.node, all)
      return expect(answers).toEqual(all.map((lease) => model.renew(step.node, lease)))
    }
    case 'release': {
      const some = leases.slice(step.place % (leases.length + 1)).map(({ lease }) => lease)
      const given = await dispatch.release(step.node, some)
      return expect(given.toSorted(byId)).toEqual(model.release(step.node, some).toSorted(byId))
    }
    case 'lose':
      return expect(await dispatch.loseNode(step.node)).toBe(model.loseNode(step.node))
    case 'cancel-task': {
      const id = `t${step.place}`
      return expect(await dispatch.cancelTask(id)).toBe(model.cancelTask(id))
    }
    case 'cancel-session': {
      const id = [...model.sessions.keys()][step.place] ?? 'ses_none'
      return expect(await dispatch.cancelSession(id)).toBe(model.cancelSession(id))
    }
  }
}

function byId(a: Lease, b: Lease): number {
  return a.sessionId < b.sessionId ? -1 : 1
}
