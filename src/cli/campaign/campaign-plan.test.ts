import { expect, test } from 'vitest'
import { TaskRequest } from '../../model/task.ts'
import type { Decision } from './campaign-journal.ts'
import { CampaignPlan, type PlannedSession } from './campaign-plan.ts'

function planOf(ids: readonly string[], limits: Partial<{ accept: number; attempts: number; refills: number }> = {}) {
  const agent = { harness: 'shell', custom_shell: { command: 'true' } }
  const tasks = ids.map((id) => TaskRequest.parse({ task_id: id, instruction: 'x', agent }))
  return new CampaignPlan({ tasks, runId: 'run_1', accept: 1, attempts: 4, refills: 1, ...limits })
}

function decide(
  { task, sessionId }: PlannedSession,
  verdict: Decision['verdict'],
  more: Partial<Decision> = {},
): Decision {
  const tokens = { sampled: 1, trained: 1 }
  return { entry: 'decision', at: 0, sessionId, taskId: task.task_id, verdict, turns: 1, tokens, ...more }
}

test('next() starts a session of every task before a second one, and no more than are missing', () => {
  const plan = planOf(['a', 'b'], { accept: 2 })
  expect([1, 2, 3, 4, 5].map(() => plan.next()?.task.task_id)).toEqual(['a', 'b', 'a', 'b', undefined])
})

test('next() continues after rejections until the attempts are used up', () => {
  const plan = planOf(['a'], { attempts: 2 })
  for (let attempt = 0; attempt < 2; attempt++) plan.add(decide(plan.next()!, 'rejected'), { wasRunning: true })
  expect(plan.next()).toBeUndefined()
  expect([plan.accepted, plan.reachable, plan.target]).toEqual([0, 0, 1])
})

test('a failed session is no attempt: the refills limit it, and a failure that would occur again ends the task', () => {
  const plan = planOf(['a', 'b'], { attempts: 1, refills: 1 })
  const a = plan.next()!
  const b = plan.next()!
  plan.add(decide(a, 'failed', { reason: 'upstream.reset' }), { wasRunning: true })
  plan.add(decide(b, 'failed', { reason: 'config.invalid' }), { wasRunning: true })
  const again = plan.next()!
  expect(again.task.task_id).toBe('a')
  plan.add(decide(again, 'failed', { reason: 'upstream.reset' }), { wasRunning: true })
  expect(plan.next()).toBeUndefined()
})

test('an interrupted session uses up neither attempts nor refills', () => {
  const plan = planOf(['a'], { attempts: 1, refills: 0 })
  plan.add(decide(plan.next()!, 'failed', { reason: 'session.cancelled' }), { wasRunning: true })
  expect(plan.next()?.task.task_id).toBe('a')
})

test('a later process gives new ids to new sessions, and the same ids to sessions that never started', () => {
  const first = planOf(['a'], { accept: 3 })
  const [one, two] = [first.next()!, first.next()!]
  const later = planOf(['a'], { accept: 3 })
  later.addStarted(one.sessionId)
  expect(later.next()!.sessionId).toBe(two.sessionId)
  expect(later.started).toBe(2)
})

test('hasDigest() compares trajectories of one task', () => {
  const plan = planOf(['a', 'b'])
  plan.add(decide(plan.next()!, 'accepted', { digest: 'x' }), { wasRunning: true })
  expect([plan.hasDigest('a', 'x'), plan.hasDigest('a', 'y'), plan.hasDigest('b', 'x')]).toEqual([true, false, false])
})
