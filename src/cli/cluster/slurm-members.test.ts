import { expect, test } from 'vitest'
import { exampleNode, NodeInfo } from '../../api/routes/node-routes.ts'
import { isLive, joinViews } from './slurm-members.ts'
import type { SubmittedJob } from './slurm-record.ts'
import { parseJobs } from './slurm-tasks.ts'

const NOW = Date.parse('2026-06-01T12:00:10Z')
const job: SubmittedJob = {
  jobId: '12',
  name: 'polar',
  tasks: 1,
  submittedAt: 0,
  workDir: '/shared',
  script: '/shared/x.sh',
  server: 'http://server:8080',
}
const node = NodeInfo.parse({ ...exampleNode, node_id: 'polar-12-0' })

test('parseJobs() parses the output of squeue, and skips other lines', () => {
  const text = [
    '12|0|RUNNING|n1|59:12|None',
    '12|1|PENDING||1:00:00|Resources',
    '13|N/A|RUNNING|n[2-3]|INVALID|(a|b)',
    'slurm_load_jobs: something',
    '',
  ].join('\n')
  expect(parseJobs(text)).toEqual([
    { jobId: '12', task: 0, state: 'RUNNING', machine: 'n1', timeLeft: '59:12', reason: 'None' },
    { jobId: '12', task: 1, state: 'PENDING', machine: '', timeLeft: '1:00:00', reason: 'Resources' },
    { jobId: '13', state: 'RUNNING', machine: 'n[2-3]', timeLeft: 'INVALID', reason: '(a|b)' },
  ])
})

test.each([
  ['PENDING', undefined, 'pending'],
  ['RUNNING', undefined, 'starting'],
  ['RUNNING', node, 'joined'],
  ['RUNNING', { ...node, draining: true }, 'draining'],
  ['RUNNING', { ...node, healthy: false }, 'lost'],
  ['COMPLETING', { ...node, draining: true }, 'draining'],
  // Requeued: the server has the node of the previous start.
  ['PENDING', node, 'pending'],
  ['COMPLETED', undefined, 'ended'],
  ['NODE_FAIL', node, 'failed'],
  ['TIMEOUT', undefined, 'failed'],
  ['A_WORD_OF_TOMORROW', undefined, 'failed'],
  [undefined, undefined, 'ended'],
] as const)('a task that is %s for Slurm, with what the server says, is %s', (state, known, expected) => {
  const tasks = state === undefined ? [] : parseJobs(`12|0|${state}|n1|59:12|None`)
  const [member] = joinViews(job, tasks, known === undefined ? [] : [known], NOW)
  expect(member).toMatchObject({ nodeId: 'polar-12-0', task: '12_0', state: expected })
  expect(isLive(member!)).toBe(!['ended', 'failed'].includes(expected))
})

test('joinViews() returns the time since the last heartbeat and the leased sessions', () => {
  const [member] = joinViews(job, parseJobs('12|0|RUNNING|n1|59:12|None'), [node], NOW)
  expect(member).toMatchObject({ sessions: 4, heartbeatSeconds: 10, machine: 'n1' })
})

test('joinViews() reports a running task as unknown if the server does not respond', () => {
  const [member] = joinViews(job, parseJobs('12|0|RUNNING|n1|59:12|None'), undefined, NOW)
  expect(member?.state).toBe('unknown')
})
