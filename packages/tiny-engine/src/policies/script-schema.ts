import { parseDocument } from 'yaml'
import * as z from 'zod'
import { EngineSetupError } from '../setup-error.ts'

/**
 * A script: the exact answers of the engine instead of a model. YAML with strict validation; docs and errors are generated
 * from this schema.
 */

const milliseconds = z.number().nonnegative().max(600_000)
const times = z.int().positive().optional().describe('Only the first n requests at this step; absent: all of them')
const afterTokens = z.int().nonnegative()

const FaultStep = z
  .discriminatedUnion('kind', [
    z.strictObject({
      kind: z.literal('status').describe('Answer with an HTTP status and an error body instead of generating'),
      status: z.int().min(400).max(599).describe('The HTTP status'),
      message: z.string().optional().describe('Text of the error body'),
      retry_after_seconds: z.number().nonnegative().optional().describe('Sent as the Retry-After header'),
      times,
    }),
    z.strictObject({
      kind: z.literal('reset').describe('Drop the connection'),
      after_tokens: afterTokens.optional().describe('After that many streamed tokens; absent: before any header'),
      times,
    }),
    z.strictObject({
      kind: z.literal('stall').describe('Send nothing for some time, then continue'),
      ms: milliseconds.describe('Duration in milliseconds'),
      after_tokens: afterTokens.optional().describe('After that many streamed tokens; absent: before any header'),
      times,
    }),
    z.strictObject({
      kind: z.literal('cut').describe('End the response cleanly, but without finish reason and without [DONE]'),
      after_tokens: afterTokens.describe('After that many streamed tokens'),
      times,
    }),
    z.strictObject({
      kind: z.literal('malformed').describe('Send bytes that are not JSON'),
      after_tokens: afterTokens
        .optional()
        .describe('As one event after that many tokens; absent: in place of the body'),
      times,
    }),
    z.strictObject({
      kind: z.literal('omit').describe('Omit requested fields'),
      fields: z
        .array(z.enum(['token_ids', 'prompt_token_ids', 'logprobs', 'usage']))
        .nonempty()
        .describe('Omitted fields'),
      times,
    }),
    z.strictObject({
      kind: z.literal('wrong-length').describe('Drop the first id or log probability, so that counts do not agree'),
      field: z.enum(['token_ids', 'logprobs']).describe('List that loses an entry'),
      times,
    }),
  ])
  .describe('An intended fault')
export type FaultStep = z.infer<typeof FaultStep>

const ToolCall = z.strictObject({
  name: z
    .string()
    .regex(/^[^"\\\s]+$/, 'must be free of quotes, backslashes and spaces')
    .describe('Name of the tool'),
  arguments: z
    .union([z.record(z.string(), z.json()), z.string()])
    .default({})
    .describe('An object, or a string that is sampled unchanged and may be invalid JSON'),
})

const Step = z
  .strictObject({
    reasoning: z.string().optional().describe('Reasoning, sampled as a <think> block before the text'),
    text: z.string().optional().describe('Text of the answer'),
    tool_calls: z.array(ToolCall).default([]).describe('Calls after the text, in the form of the chat template'),
    tokens: z
      .int()
      .positive()
      .max(1_000_000)
      .optional()
      .describe('Instead of text: this many pseudo-random ordinary tokens, always the same, for load tests'),
    first_token_ms: milliseconds.default(0).describe('Wait before the first token'),
    per_token_ms: milliseconds.default(0).describe('Time between tokens; 0 sends them as fast as they are read'),
    finish: z
      .enum(['stop', 'length'])
      .default('stop')
      .describe('length: the turn ends without an end-of-turn token, as at max_tokens'),
    fault: z
      .union([FaultStep, z.array(FaultStep)])
      .default([])
      .describe('One fault or several; each request uses the first fault with `times` left'),
  })
  .refine((step) => step.tokens === undefined || (step.text ?? step.reasoning) === undefined, {
    path: ['tokens'],
    error: 'cannot be combined with text or reasoning',
  })
  .describe('One assistant turn')
export type Step = z.infer<typeof Step>

const Steps = z.array(Step).nonempty()

/** Words between dots, so that a marker at the end of a sentence does not include the full stop. */
const NAME = String.raw`[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*`

/** `SCRIPT:name` or `SCRIPT:name#nonce`. */
export const MARKER = new RegExp(`SCRIPT:(?<name>${NAME})(?:#(?<nonce>${NAME}))?`, 'g')

const PlayedModel = z.strictObject({
  context_tokens: z
    .int()
    .min(256)
    .max(10_000_000)
    .optional()
    .describe('Limit of prompt and answer in tokens; absent: 32768, the limit of the embedded model'),
  images: z
    .boolean()
    .default(false)
    .describe('Accept images, as a vision model does; the prompt contains a word with the digest of each image'),
})

export const Script = z
  .strictObject({
    scenarios: z
      .record(
        z.string().regex(new RegExp(`^${NAME}$`), 'must be letters, digits, "_", "-", and "." between them'),
        Steps,
      )
      .default({})
      .describe(
        'By name: turns for a conversation with the marker SCRIPT:name (or SCRIPT:name#nonce) in a user message',
      ),
    order: Steps.optional().describe('Turns for requests without a marker, in order of arrival'),
    repeat: z.enum(['last', 'cycle', 'error']).default('last').describe('Behaviour after the last turn of `order`'),
    default: Step.optional().describe('Turn of all other requests'),
    logprobs: z
      .enum(['synthetic', 'model'])
      .default('synthetic')
      .describe(
        'synthetic: computed from the ids, which is fast; model: the log probabilities of the model for the scripted tokens',
      ),
    model: PlayedModel.prefault({}).describe('Properties of the imitated model that differ from the embedded model'),
  })
  .refine(({ logprobs, model }) => logprobs === 'synthetic' || (model.context_tokens === undefined && !model.images), {
    path: ['model'],
    error: 'must be that of the embedded model, which computes the log probabilities',
  })
export type Script = z.infer<typeof Script>
/** A script before defaults are applied. */
export type ScriptInput = z.input<typeof Script>

/** Parses YAML text or a plain object. Throws an `EngineSetupError` that names every invalid field. */
export function parseScript(source: string | ScriptInput): Script {
  const parsed = Script.safeParse(typeof source === 'string' ? parseYaml(source) : source)
  if (parsed.success) return parsed.data
  const problems = parsed.error.issues.flatMap((issue) => describeIssue(issue, []))
  throw new EngineSetupError(`The script is not valid:\n${problems.map((problem) => `  ${problem}`).join('\n')}`)
}

function parseYaml(text: string): unknown {
  const document = parseDocument(text)
  const [problem] = document.errors
  if (problem) throw new EngineSetupError(`The script is not valid YAML: ${problem.message}`)
  // Limits the expansion of aliases, so that a small file cannot become huge.
  return document.toJS({ maxAliasCount: 100 }) as unknown
}

function describeIssue(issue: z.core.$ZodIssue, parent: readonly PropertyKey[]): string[] {
  const path = [...parent, ...issue.path]
  if (issue.code === 'invalid_union' && issue.errors.length > 0) {
    // A branch of another type was not intended.
    const branch = issue.errors.find((inner) => !inner.some(isOtherType)) ?? issue.errors[0] ?? []
    return branch.flatMap((inner) => describeIssue(inner, path))
  }
  return [`${path.length === 0 ? '(top level)' : path.map(String).join('.')}: ${issue.message}`]
}

function isOtherType(issue: z.core.$ZodIssue): boolean {
  return issue.code === 'invalid_type' && issue.path.length === 0
}
