import { expect, test } from 'vitest'
import { toSweTask, type SweOptions } from './swe-row.ts'

const row = {
  instance_id: 'Team__Project-12',
  repo: 'Team/Project',
  base_commit: 'a'.repeat(40),
  problem_statement: 'Fix it.',
  FAIL_TO_PASS: '["tests/test_a.py::test_one"]',
  PASS_TO_PASS: [],
  unknown: 1,
}

const options: SweOptions = {
  agent: { harness: 'pi' },
  runtime: { kind: 'bubblewrap', capabilities: { images: 'none' } },
  repositories: 'https://example.org/',
  more: { builder: { strategy: 'prefix_merging' } },
}

test('toSweTask() checks out the repository where the runtime uses no images', () => {
  const task = toSweTask(row, options)
  expect(task).toMatchObject({
    task_id: 'Team__Project-12',
    instruction: 'Fix it.',
    builder: { strategy: 'prefix_merging' },
    metadata: { repo: 'team/project' },
    evaluator: { strategy: 'swebench', config: { instance: row, repo_dir: '/testbed' } },
  })
  expect(task.runtime?.image).toBeUndefined()
  expect(task.runtime?.prepare).toEqual([
    { type: 'checkout', repository: 'https://example.org/team/project', commit: row.base_commit, target: '/testbed' },
  ])
})

test('toSweTask() uses the image of the row, of SWE-bench, or of the template', () => {
  const docker: SweOptions = { ...options, runtime: { kind: 'docker', capabilities: { images: 'required' } } }
  const imageOf = (value: object, more: Partial<SweOptions> = {}): unknown =>
    toSweTask({ ...row, ...value }, { ...docker, ...more }).runtime?.image
  expect(imageOf({ image_name: 'own:1' })).toBe('own:1')
  expect(imageOf({})).toBe('swebench/sweb.eval.x86_64.team_1776_project-12:latest')
  expect(imageOf({}, { image: 'local/{id}:2' })).toBe('local/team__project-12:2')
})

test.each([
  [{ ...row, problem_statement: undefined }, /problem_statement/],
  [{ ...row, base_commit: undefined }, /base_commit/],
  [{ ...row, base_commit: 'main' }, /commit/],
  [{ ...row, FAIL_TO_PASS: [] }, /FAIL_TO_PASS/],
])('toSweTask() rejects a row with a missing or wrong field', (value, message) => {
  expect(() => toSweTask(value, options)).toThrow(message)
})
