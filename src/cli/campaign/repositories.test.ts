import fc from 'fast-check'
import { expect, test } from 'vitest'
import { TaskRequest } from '../../model/task.ts'
import { repositoryOf, splitRepositories } from './repositories.ts'

function taskWith(fields: object): TaskRequest {
  const agent = { harness: 'shell', custom_shell: { command: 'true' } }
  return TaskRequest.parse({ task_id: 'task-1', instruction: 'x', agent, ...fields })
}

const commit = 'a'.repeat(40)

test.each([
  [{ metadata: { repo: 'Team/Project' } }, 'team/project'],
  [{ evaluator: { strategy: 'swebench', config: { instance: { repo: 'django/django' } } } }, 'django/django'],
  [
    {
      runtime: {
        prepare: [{ type: 'checkout', repository: 'https://example.org/team/project.git', commit, target: '/testbed' }],
      },
    },
    'team/project',
  ],
  [{}, 'task-1'],
])('repositoryOf() a task with %o is %s', (fields, repository) => {
  expect(repositoryOf(taskWith(fields))).toBe(repository)
})

const names = fc.array(fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f'), { minLength: 1, maxLength: 60 })

test('splitRepositories() depends on the names and the seed only, and keeps both splits non-empty', () => {
  fc.assert(
    fc.property(names, fc.nat(5), fc.constantFrom(0.1, 0.3, 0.5), (repositories, seed, share) => {
      const splits = splitRepositories(repositories, { share, seed })
      const shuffled = splitRepositories(repositories.toReversed(), { share, seed })
      expect(Object.fromEntries(shuffled)).toEqual(Object.fromEntries(splits))
      const distinct = new Set(repositories)
      expect(new Set(splits.keys())).toEqual(distinct)
      const held = [...splits].filter(([, split]) => split === 'test').map(([name]) => name)
      expect(held.length > 0).toBe(distinct.size > 1)
      expect(held.length).toBeLessThan(distinct.size)
      const tasks = repositories.filter((name) => held.includes(name)).length
      expect(tasks <= share * repositories.length || held.length === 1).toBe(true)
    }),
  )
})

test('splitRepositories() without a share holds nothing out', () => {
  expect([...splitRepositories(['a', 'b'], { share: 0, seed: 0 }).values()]).toEqual(['train', 'train'])
})
