import * as z from 'zod'
import { type Failure, FailureCode } from '../model/failure.ts'

/** FastAPI's format, which NVIDIA Polar's clients read from a 422. */
const Problem = z.object({
  loc: z.array(z.union([z.string(), z.int()])),
  msg: z.string(),
  type: z.string(),
})
export type Problem = z.infer<typeof Problem>

/**
 * Body of every error on every route. `error` is ours and is what programs should read; `detail` holds the same for clients of
 * NVIDIA Polar: a sentence, or for a 422 all problems of the request.
 */
export const ErrorBody = z.object({
  error: z.object({
    code: FailureCode,
    message: z.string(),
    /** The invalid field, if known: `body.agent.harness`. */
    param: z.string().optional(),
  }),
  detail: z.union([z.string(), z.array(Problem)]),
})
export type ErrorBody = z.infer<typeof ErrorBody>

export function toErrorBody({ code, message, param }: Failure, problems?: readonly Problem[]): ErrorBody {
  return {
    error: { code, message, param },
    detail: problems === undefined ? message : [...problems],
  }
}
