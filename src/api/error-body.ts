import * as z from 'zod'
import { type Failure, FailureCode } from '../model/failure.ts'

/** As FastAPI writes one; NVIDIA Polar's clients read these out of a 422. */
const Problem = z.object({
  loc: z.array(z.union([z.string(), z.int()])),
  msg: z.string(),
  type: z.string(),
})
export type Problem = z.infer<typeof Problem>

/**
 * Every error, on every route. `error` is ours and is what programs should look at; `detail` says the same to clients of
 * NVIDIA Polar: a sentence, or for a 422 all that is wrong with the request.
 */
export const ErrorBody = z.object({
  error: z.object({
    code: FailureCode,
    message: z.string(),
    /** The field at fault, where one is known: `body.agent.harness`. */
    param: z.string().optional(),
  }),
  detail: z.union([z.string(), z.array(Problem)]),
})
export type ErrorBody = z.infer<typeof ErrorBody>

export function toErrorBody({ code, message, param }: Failure, problems?: readonly Problem[]): ErrorBody {
  return {
    error: { code, message, ...(param !== undefined && { param }) },
    detail: problems === undefined ? message : [...problems],
  }
}
