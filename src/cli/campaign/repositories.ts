import { createHash } from 'node:crypto'
import type { TaskRequest } from '../../model/task.ts'

export type Split = 'train' | 'test'

/**
 * Returns the repository of a task: `metadata.repo`, the row of the evaluator, or the checkout of the sandbox. A task without
 * a repository is its own group, named after the task.
 */
export function repositoryOf({ task_id: taskId, metadata, evaluator, runtime }: TaskRequest): string {
  const named = metadata['repo'] ?? metadata['repository'] ?? fieldOf(evaluator?.config['instance'], 'repo')
  if (typeof named === 'string' && named !== '') return named.toLowerCase()
  const checkout = runtime?.prepare.find((step) => step.type === 'checkout')
  if (checkout?.type === 'checkout') return nameOf(checkout.repository)
  return taskId
}

function fieldOf(value: unknown, key: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>)[key] : undefined
}

/** `https://host/owner/name.git` is `owner/name`. */
function nameOf(url: string): string {
  const path = url.replace(/^[a-z]+:\/\/[^/]*/, '').replace(/(?:\.git)?\/*$/, '')
  return path.split('/').slice(-2).join('/').toLowerCase()
}

/**
 * Assigns whole repositories to the test split, so that no repository is in both. The order of repositories is a hash of
 * `seed` and name; repositories are taken while at most `share` of the tasks are in the test split, and at least one if there
 * are two or more.
 */
export function splitRepositories(
  repositories: readonly string[],
  { share, seed }: { share: number; seed: number },
): Map<string, Split> {
  const sizes = new Map<string, number>()
  for (const name of repositories) sizes.set(name, (sizes.get(name) ?? 0) + 1)
  const order = [...sizes.keys()].map((name) => ({ name, rank: rankOf(name, seed) }))
  order.sort((a, b) => (a.rank < b.rank ? -1 : 1))
  const splits = new Map<string, Split>(order.map(({ name }) => [name, 'train']))
  if (share <= 0 || order.length < 2) return splits
  let left = Math.floor(share * repositories.length)
  for (const { name } of order) {
    const size = sizes.get(name)!
    if (size > left) continue
    splits.set(name, 'test')
    left -= size
  }
  if (![...splits.values()].includes('test')) {
    const smallest = order.toSorted((a, b) => sizes.get(a.name)! - sizes.get(b.name)!)[0]!
    splits.set(smallest.name, 'test')
  }
  return splits
}

function rankOf(name: string, seed: number): string {
  return createHash('sha256').update(`${seed}\n${name}`).digest('hex')
}
