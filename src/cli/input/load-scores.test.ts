import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { loadScores } from './load-scores.ts'

async function load(content: string): Promise<Awaited<ReturnType<typeof loadScores>>> {
  const dir = await mkdtemp(join(tmpdir(), 'polar-scores-'))
  try {
    await writeFile(join(dir, 'rewards.jsonl'), content)
    return await loadScores(join(dir, 'rewards.jsonl'))
  } finally {
    await rm(dir, { recursive: true, force: true })
  }
}

test('loadScores() reads one score per line, and returns no reward for sessions without one', async () => {
  const scores = await load(
    '{"session_id": "a", "outcome_reward": 1, "components": {"tests": 0.5}, "group_id": "g"}\r\n\n' +
      '{"session_id": "b", "trace_rewards": [0, null]}',
  )
  expect(scores.get('a')).toMatchObject({ outcome_reward: 1, components: { tests: 0.5 }, group_id: 'g' })
  expect(scores.get('b')).toEqual({ session_id: 'b', trace_rewards: [0, null], metadata: {} })
})

test('loadScores() names every wrong line, up to ten', async () => {
  const lines = [
    '{"session_id": "a", "outcome_reward": true}',
    '{"session_id": "b", "outcome_rewards": 1}',
    '{',
    '{"session_id": "c"}',
    '{"session_id": "c"}',
    ...Array.from({ length: 9 }, () => '[]'),
  ]
  const error = await load(lines.join('\n')).catch((problem: unknown) => problem)
  expect(error).toMatchObject({ code: 'config.invalid' })
  const text = (error as Error).message
  expect(text).toMatch(/line 1: outcome_reward: .*\n.*line 2: .*outcome_rewards.*\n.*line 3: not JSON/)
  expect(text).toMatch(/line 5: session c already has a score in line 4/)
  expect(text).toMatch(/and 3 more$/)
})

test('loadScores() names the missing file', async () => {
  await expect(loadScores('/nowhere/rewards.jsonl')).rejects.toMatchObject({
    code: 'config.invalid',
    message: expect.stringContaining('/nowhere/rewards.jsonl: no such file'),
  })
})
