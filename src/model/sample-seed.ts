import type { TaskRequest } from './task.ts'

/** NVIDIA Polar's trainer sends it with evaluations: sample `i` is sampled with this seed plus `i`. */
export const SEED_BASE_FIELD = 'eval_sampling_seed_base'

/** Why the seed of an evaluation cannot be used; undefined when there is none, or it can. */
export function findSeedProblem({
  metadata,
  num_samples,
}: Pick<TaskRequest, 'metadata' | 'num_samples'>): string | undefined {
  const base = metadata[SEED_BASE_FIELD]
  if (base == null) return undefined
  const isSafe = Number.isSafeInteger(base) && Number.isSafeInteger((base as number) + num_samples)
  return isSafe && (base as number) >= 0 ? undefined : 'must be a whole number that is not negative'
}

/** The task of one sample. Without a seed for evaluations it is the task itself. */
export function withSampleSeed(task: TaskRequest, sample: number): TaskRequest {
  const base = task.metadata[SEED_BASE_FIELD]
  if (typeof base !== 'number') return task
  const seed = base + sample
  return {
    ...task,
    sampling: { ...task.sampling, seed },
    metadata: { ...task.metadata, eval_sampling_seed: seed },
  }
}
