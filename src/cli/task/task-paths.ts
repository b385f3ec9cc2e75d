import { isTree } from '../../lib/fs/merge-trees.ts'
import type { TaskRequest } from '../../model/task.ts'
import { PATH_KEYS } from '../../node/check-task.ts'

/** Returns the paths of files and folders on the node that a task names. */
export function pathsOf({ runtime, agent, evaluator }: TaskRequest): string[] {
  const steps = [...(runtime?.prepare ?? []), ...(runtime?.eval_prepare ?? [])]
  const strategy = evaluator?.strategy ?? ''
  return [
    ...steps.flatMap((step) => (step.type === 'upload_file' || step.type === 'upload_dir' ? [step.source] : [])),
    ...[runtime?.import_path, agent.skills_path, agent.import_path].filter((path) => path != null),
    ...(strategy.includes('/') ? [strategy] : []),
    ...pathsIn(evaluator?.config),
  ]
}

function pathsIn(value: unknown): string[] {
  if (Array.isArray(value)) return value.flatMap(pathsIn)
  if (!isTree(value)) return []
  return Object.entries(value).flatMap(([key, inner]) =>
    PATH_KEYS.has(key) && typeof inner === 'string' ? [inner] : pathsIn(inner),
  )
}
