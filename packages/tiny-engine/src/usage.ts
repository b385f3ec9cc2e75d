import type { ActiveGeneration } from './generation.ts'

/** Returns `usage` of a whole answer over all its prompts and choices. */
export function usageOf(actives: readonly ActiveGeneration[], reasoning?: number): string {
  const prompt = actives.reduce((sum, { job }) => sum + job.promptIds.length, 0)
  const completion = actives.reduce(
    (sum, { choices }) => sum + choices.reduce((own, { ids }) => own + ids.length, 0),
    0,
  )
  const cached = actives.reduce<number | undefined>((sum, { cachedTokens }) => {
    return cachedTokens === undefined ? sum : (sum ?? 0) + cachedTokens
  }, undefined)
  return usageText(prompt, completion, { reasoning, cached })
}

export function usageText(
  prompt: number,
  completion: number,
  details: { reasoning?: number; cached?: number } = {},
): string {
  const { reasoning, cached } = details
  const promptDetails = cached === undefined ? '' : `,"prompt_tokens_details":{"cached_tokens":${cached}}`
  const completionDetails =
    reasoning === undefined ? '' : `,"completion_tokens_details":{"reasoning_tokens":${reasoning}}`
  return `{"prompt_tokens":${prompt},"total_tokens":${prompt + completion},"completion_tokens":${completion}${promptDetails}${completionDetails}}`
}
