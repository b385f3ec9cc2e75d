import { expect, test } from 'vitest'
import { TaskRequest } from '../../model/task.ts'
import type { Decision } from './campaign-journal.ts'
import { toReport } from './campaign-report.ts'
import { renderChart } from './report-chart.ts'
import { renderMarkdown } from './report-markdown.ts'

const agent = { harness: 'shell', custom_shell: { command: 'true' } }
const tasks = ['a', 'b', 'c'].map((id) =>
  TaskRequest.parse({ task_id: id, instruction: 'x', agent, metadata: { repo: id === 'c' ? 'x/<y>&z' : 'team/one' } }),
)

function decision(taskId: string, verdict: Decision['verdict'], more: Partial<Decision> = {}): Decision {
  const tokens = { sampled: 12, trained: 10 }
  return { entry: 'decision', at: 0, sessionId: 'ses_1', taskId, verdict, turns: 4, tokens, runMs: 2000, ...more }
}

const report = toReport({
  runId: 'run_1',
  stopped: 'attempts',
  accept: 1,
  tasks,
  decisions: [
    decision('a', 'rejected', { reason: 'reward' }),
    decision('a', 'accepted', { turns: 6, secrets: 2 }),
    decision('b', 'accepted'),
    decision('b', 'failed', { reason: 'upstream.reset' }),
    decision('c', 'rejected', { reason: 'reward' }),
  ],
  splits: new Map([['x/<y>&z', 'test']]),
  files: [],
  elapsedMs: 61_234,
})

test('toReport() counts attempts without failures, and means of accepted sessions', () => {
  expect(report).toMatchObject({
    attempts: 4,
    accepted: 2,
    acceptance: 0.5,
    tasks_complete: 2,
    rejected: { reward: 2 },
    failed: { 'upstream.reset': 1 },
    mean_turns: 5,
    max_turns: 6,
    tokens: { sampled: 60, trained: 50, accepted: 20 },
    secrets: 2,
    elapsed_seconds: 61.2,
    agent_seconds: 10,
  })
  expect(report.repositories).toMatchObject([
    { repository: 'team/one', split: 'train', tasks: 2, attempts: 3, accepted: 2 },
    { repository: 'x/<y>&z', split: 'test', tasks: 1, attempts: 1, accepted: 0, mean_turns: null },
  ])
})

test('renderMarkdown() has a row for each repository', () => {
  const text = renderMarkdown(report, 'report.svg')
  expect(text).toContain('| team/one | train | 2 | 3 | 2 | 66.7 % | 5 | 10 | 2 |')
  expect(text).toContain('because the other tasks have used up their attempts.')
})

test('renderChart() escapes names, and joins the repositories beyond the twentieth', () => {
  const svg = renderChart(report)
  expect(svg).toContain('x/&lt;y&gt;&amp;z')
  expect(svg).toContain('2 of 3')
  const [first] = report.repositories
  const many = Array.from({ length: 25 }, (_, index) => ({ ...first!, repository: `r${index}` }))
  const joined = renderChart({ repositories: many })
  expect(joined.match(/text-anchor="end"/g)).toHaveLength(20)
  expect(joined).toContain('6 other repositories')
  expect(joined).toContain('12 of 18')
})
