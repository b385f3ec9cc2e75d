import * as z from 'zod'
import { arrayOf } from '../lib/json/list-of.ts'

/**
 * A training sample: a prompt, a response, and a mask of the tokens that the policy sampled. Field names are NVIDIA Polar's, for
 * its clients. `loss_mask` and, if present, `response_logprobs` have the length of `response_ids`.
 */
export const Trace = z
  .object({
    prompt_ids: arrayOf(z.int()),
    response_ids: arrayOf(z.int()),
    loss_mask: arrayOf(z.literal([0, 1])),
    prompt_messages: z.array(z.unknown()),
    response_messages: z.array(z.unknown()),
    tools: z.array(z.unknown()).nullish(),
    finish_reason: z.string().nullish(),
    /** 0 where the mask is 0. Absent or null if a trained token has none: then the trace cannot be trained. */
    response_logprobs: arrayOf(z.number().nullable()).nullish(),
    reward: z.number().nullish(),
    metadata: z.record(z.string(), z.unknown()),
  })
  .refine((trace) => trace.loss_mask.length === trace.response_ids.length, 'loss_mask must be as long as response_ids')
  .refine(
    (trace) => trace.response_logprobs == null || trace.response_logprobs.length === trace.response_ids.length,
    'response_logprobs must be as long as response_ids',
  )
export type Trace = z.infer<typeof Trace>

export const Trajectory = z.object({
  status: z.enum(['COMPLETED', 'TIMEOUT', 'ERROR']),
  metadata: z.record(z.string(), z.unknown()),
  traces: arrayOf(Trace),
  error: z.string().nullish(),
})
export type Trajectory = z.infer<typeof Trajectory>
