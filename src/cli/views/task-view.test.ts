import { expect, test } from 'vitest'
import { SessionSummary } from '../../api/routes/session-routes.ts'
import { NOW, taskSummary as task } from '../../../test/support/task-summary.ts'
import { renderTask, renderTasks } from './task-view.ts'

function session(sample: number, more: object): SessionSummary {
  const usual = {
    task_id: 'fix-42',
    node_id: null,
    reward: null,
    timing: {},
    error: null,
    failure: null,
    progress: null,
  }
  return SessionSummary.parse({
    session_id: `ses_${sample}`,
    status: 'REGISTERED',
    sample,
    attempt: 0,
    ...usual,
    ...more,
  })
}

test('renderTasks() prints a table that distinguishes no reward from a reward of zero', () => {
  expect(renderTasks([task, { ...task, task_id: 'b', mean_reward: null, created_at: NOW / 1000 - 90_000 }], NOW)).toBe(
    [
      'task    status   harness  done  failed  mean reward  submitted',
      '──────────────────────────────────────────────────────────────',
      'fix-42  running  codex    3/8        1        0.500  2 min',
      'b       running  codex    3/8        1            -  1 d',
      '',
    ].join('\n'),
  )
  expect(renderTasks([], NOW)).toBe('No tasks.\n')
})

test('renderTask() prints the state of each session, and each failure code once', () => {
  const failure = { code: 'runtime.gone', message: 'The sandbox vanished.\nat line 2', status: 500 }
  const sessions = [
    session(0, { status: 'COMPLETED', node_id: 'n1', attempt: 1, reward: 1, progress: { calls: 1, tokens: 9 } }),
    session(1, { status: 'RUNNING', node_id: 'n2', attempt: 2, progress: { calls: 4, tokens: 512 } }),
    session(2, { status: 'ERROR', node_id: 'n2', attempt: 4, failure }),
    session(3, { status: 'ERROR', node_id: 'n1', attempt: 4, failure }),
  ]
  const text = renderTask(task, sessions, NOW)
  expect(text).not.toContain('Waiting')
  const why = 'No registered node has all of sandboxes of kind docker.'
  expect(renderTask(task, sessions, NOW, why)).toContain(`Waiting      ${why}\n`)
  expect(text).toContain('Sessions     3 of 8 done, 2 valid, 2 trainable, 1 failed, 1 replaced\n')
  expect(text).toMatch(/^ +1 +ses_1 +RUNNING +2 +n2 +- +4 +512$/m)
  expect(text).toMatch(/^ +0 +ses_0 +COMPLETED +1 +n1 +1\.000 +- +-$/m)
  expect(text.match(/2 × runtime\.gone: The sandbox vanished\.\n/g)).toHaveLength(1)
})
