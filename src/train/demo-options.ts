import type { TrainOptions } from './train.ts'

/** Rank of the trained update of the output layer. */
export const DEMO_RANK = 8

/** Options of `polar train-demo` that its flags do not set. */
export const DEMO_OPTIONS = {
  epochs: 4,
  clip: 0.2,
  advantages: 'grpo-std',
  adam: { learningRate: 0.008, beta1: 0.9, beta2: 0.99, epsilon: 1e-3 },
  tolerance: 1e-3,
} as const satisfies Partial<TrainOptions>
