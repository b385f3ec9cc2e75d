import type { TaskRequest } from './task.ts'

/** Set by NVIDIA Polar's trainer for evaluations: the seed of sample `i` is this value plus `i`. */
export const SEED_BASE_FIELD = 'eval_sampling_seed_base'

/** Describes an invalid evaluation seed; undefined if it is valid or absent. */
export function findSeedProblem({
  metadata,
  num_samples,
}: Pick<TaskRequest, 'metadata' | 'num_samples'>): string | undefined {
  const base = metadata[SEED_BASE_FIELD]
  if (base == null) return undefined
  const isSafe = Number.isSafeInteger(base) && Number.isSafeInteger((base as number) + num_samples)
  return isSafe && (base as number) >= 0 ? undefined : 'must be a non-negative integer'
}

/** Returns the task of one sample, with its seed if the task has an evaluation seed. */
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
