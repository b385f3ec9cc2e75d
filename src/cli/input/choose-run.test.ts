import { expect, test } from 'vitest'
import type { SessionOrigin } from '../../store/store.ts'
import { advantagesOf, type SessionScore } from '../../trajectory/score-session.ts'
import { chooseRun, groupOf, scoresOfRun } from './choose-run.ts'

const session = (id: string, run?: string): SessionOrigin => ({ id, origin: run === undefined ? {} : { run } })
const score = (id: string, reward: number, group: string): [string, SessionScore] => [
  id,
  { session_id: id, outcome_reward: reward, group_id: group, metadata: {} },
]

const two = [session('a', 'run_1'), session('b', 'run_1'), session('c', 'run_2'), session('d', 'run_2')]

test('chooseRun() returns the last run by default, a named run, or all', () => {
  expect(chooseRun('export', two, undefined)).toEqual({ ids: ['c', 'd'], run: 'run_2', runs: ['run_1', 'run_2'] })
  expect(chooseRun('export', two, 'run_1').ids).toEqual(['a', 'b'])
  expect(chooseRun('export', two, 'all').ids).toEqual(['a', 'b', 'c', 'd'])
  expect(() => chooseRun('export', two, 'run_3')).toThrow(/run_3.*all, run_1, run_2/)
})

test('a later refill of an earlier run does not make this run the last', () => {
  expect(chooseRun('export', [...two, session('e', 'run_1')], undefined)).toMatchObject({ run: 'run_2' })
})

test('sessions without a run id are one run', () => {
  const old = [session('a'), session('b')]
  expect(chooseRun('export', old, undefined)).toEqual({ ids: ['a', 'b'], run: 'none', runs: ['none'] })
  expect(chooseRun('export', [...old, session('c', 'run_1')], undefined).ids).toEqual(['c'])
  expect(chooseRun('export', [...old, session('c', 'run_1')], 'none').ids).toEqual(['a', 'b'])
  expect(chooseRun('export', [session('c', 'run_1'), ...old], undefined).ids).toEqual(['a', 'b'])
  expect(chooseRun('export', [], undefined).ids).toEqual([])
})

test.each(['run_1', 'run_2', 'all'])('groups of one name do not span runs: --run %s', (run) => {
  const scores = new Map([score('a', 1, 'task'), score('b', 1, 'task'), score('c', 0, 'task'), score('d', 0, 'task')])
  const advantages = advantagesOf([...scoresOfRun(scores, two, run).values()], 'grpo')
  expect([...advantages.values()].every((advantage) => advantage === 0)).toBe(true)
})

test('scoresOfRun() keeps scores of sessions outside the folder in their group', () => {
  const scores = new Map([score('c', 0, 'task'), score('elsewhere', 1, 'task')])
  const advantages = advantagesOf([...scoresOfRun(scores, two, 'run_2').values()], 'grpo')
  expect(Object.fromEntries(advantages)).toEqual({ c: -0.5, elsewhere: 0.5 })
})

test('groupOf() adds the run once', () => {
  expect(groupOf('run_1', groupOf('run_1', 'task'))).toBe('run_1/task')
})
