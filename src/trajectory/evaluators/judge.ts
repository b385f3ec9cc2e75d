import { randomBytes } from 'node:crypto'
import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { Workspace } from '../../model/workspace.ts'
import { assertCallable, requireSecret } from '../grading/assert-callable.ts'
import { collectReadable, readSubmitted, ReadFileSettings, type SubmittedFile } from '../grading/submitted-files.ts'
import type { Collection, Evaluation, Evaluator, EvaluatorDeps } from './evaluator.ts'
import {
  requestVerdict,
  toFormats,
  toSchema,
  type JudgeAnswer,
  type JudgeCall,
  type JudgeUsage,
  type Verdict,
} from './judge-call.ts'
import { toJudgeMessages, type Criterion } from './judge-prompt.ts'

const CriterionConfig = z.strictObject({
  name: z.string().regex(/^[a-zA-Z][\w-]{0,63}$/, 'must be letters, digits, - and _'),
  description: z.string().min(1).describe('Condition under which it is met'),
  weight: z.number().positive().default(1).describe('Weight relative to the other criteria'),
})

const JudgeConfig = z.strictObject({
  kind: z.literal('judge'),
  base_url: z
    .url()
    .describe('Base URL of an OpenAI-compatible API, with or without /v1; the operator lists the allowed hosts'),
  model: z.string().min(1),
  api_key_env: z.string().min(1).optional().describe('Name of the secret with the API key; absent: no key'),
  rubric: z
    .union([z.string().min(1), z.array(CriterionConfig).min(1).max(32)])
    .describe('Definition of good work: a text, or criteria that are scored separately'),
  score_min: z.number().default(0).describe('Score with reward 0'),
  score_max: z.number().default(10).describe('Score with reward 1'),
  samples: z.int().min(1).max(16).default(1).describe('Number of verdicts'),
  aggregate: z.enum(['mean', 'median']).default('mean').describe('How several verdicts are combined'),
  temperature: z.number().min(0).max(2).nullable().default(0).describe("null: the engine's default"),
  max_tokens: z.int().positive().optional().describe("Token limit of an answer; absent: the engine's default"),
  extra_body: z
    .record(z.string(), z.json())
    .default({})
    .describe('Further fields of the request, such as reasoning_effort'),
  files: ReadFileSettings.optional().describe('Files of the agent that the judge sees; absent: none'),
  max_section_chars: z.int().positive().default(40_000).describe('Longer sections lose their middle'),
  max_retries: z
    .int()
    .min(0)
    .max(10)
    .default(2)
    .describe('Retries of temporary failures, and of answers that are not a verdict'),
  retry_backoff_seconds: z.number().min(0).max(60).default(1).describe('Delay before the first retry; doubles'),
  timeout_seconds: z.number().positive().max(3600).default(60).describe('Time limit of one attempt'),
  input_price: z
    .number()
    .min(0)
    .optional()
    .describe('Price per million tokens in any currency; absent: no cost is reported'),
  output_price: z.number().min(0).optional(),
})
type JudgeConfig = z.infer<typeof JudgeConfig>

/** Grades by a language model. */
export const judge: Plug<typeof JudgeConfig, EvaluatorDeps, Evaluator> = {
  config: JudgeConfig.refine((config) => config.score_min < config.score_max, {
    path: ['score_max'],
    error: 'must be greater than score_min',
  }).refine(
    ({ rubric }) => typeof rubric === 'string' || new Set(rubric.map(({ name }) => name)).size === rubric.length,
    {
      path: ['rubric'],
      error: 'has two criteria with the same name',
    },
  ),
  create(config, deps) {
    const base = config.base_url.replace(/\/+$/, '').replace(/\/v1$/, '')
    const url = new URL(`${base}/v1/chat/completions`)
    assertCallable(url, deps, 'evaluator judge, base_url')
    const key = requireSecret(config.api_key_env, deps, 'evaluator judge, api_key_env')
    const { files } = config
    return {
      needs: { sandbox: false, agentState: false, messages: true },
      ...(files !== undefined && {
        collect: (agent: Workspace, collection: Collection) => collectReadable(agent, collection, files),
      }),
      evaluate: (evaluation) => evaluate(config, { url, key, mayConnect: deps.mayConnect }, evaluation),
    }
  },
}

async function evaluate(
  config: JudgeConfig,
  { url, key, mayConnect }: Pick<JudgeCall, 'url' | 'key' | 'mayConnect'>,
  evaluation: Evaluation,
): Promise<EvalResult> {
  const criteria = toCriteria(config.rubric)
  const messages = toJudgeMessages({
    criteria,
    scoreMin: config.score_min,
    scoreMax: config.score_max,
    instruction: evaluation.task.instruction,
    transcript: evaluation.transcript(),
    files: await loadFiles(config, evaluation.submission),
    maxChars: config.max_section_chars,
    boundary: randomBytes(12).toString('hex'),
  })
  await evaluation.evidence.write('judge-request.json', JSON.stringify({ model: config.model, messages }, undefined, 2))
  const schema = toSchema(
    criteria.map(({ name }) => name),
    config.score_min,
    config.score_max,
  )
  const call: JudgeCall = {
    url,
    key,
    body: {
      ...config.extra_body,
      model: config.model,
      messages,
      ...(config.temperature !== null && { temperature: config.temperature }),
      ...(config.max_tokens !== undefined && { max_tokens: config.max_tokens }),
    },
    schema,
    formats: toFormats(schema),
    maxRetries: config.max_retries,
    backoffMs: config.retry_backoff_seconds * 1000,
    timeoutMs: config.timeout_seconds * 1000,
    mayConnect,
    signal: evaluation.signal,
  }
  const answers: JudgeAnswer[] = []
  try {
    for (let index = 0; index < config.samples; index++) answers.push(await requestVerdict(call))
  } finally {
    const texts = answers.flatMap(({ texts: all }) => all)
    await evaluation.evidence.write('judge-answer.json', JSON.stringify(texts, undefined, 2))
  }
  return toResult(config, criteria, answers)
}

function toCriteria(rubric: JudgeConfig['rubric']): Criterion[] {
  return typeof rubric === 'string' ? [{ name: 'quality', description: rubric, weight: 1 }] : rubric
}

async function loadFiles({ files }: JudgeConfig, submission: string): Promise<SubmittedFile[]> {
  return files === undefined ? [] : Array.fromAsync(readSubmitted(submission, files))
}

function toResult(config: JudgeConfig, criteria: readonly Criterion[], answers: readonly JudgeAnswer[]): EvalResult {
  const verdicts = answers.map(({ verdict }) => verdict)
  const combine = config.aggregate === 'mean' ? mean : median
  const toReward = (score: number) => (score - config.score_min) / (config.score_max - config.score_min)
  const components = Object.fromEntries(
    criteria.map(({ name }) => [name, combine(verdicts.map((verdict) => toReward(scoreOf(verdict, name))))]),
  )
  const weights = criteria.reduce((sum, { weight }) => sum + weight, 0)
  const outcome = criteria.reduce((sum, { name, weight }) => sum + weight * components[name]!, 0) / weights
  return {
    outcome_reward: outcome,
    components,
    metadata: {
      model: config.model,
      scores: verdicts.map((verdict) => Object.fromEntries(criteria.map(({ name }) => [name, scoreOf(verdict, name)]))),
      reasons: verdicts.map((verdict) =>
        Object.fromEntries(criteria.map(({ name }) => [name, verdict[name]?.reason.slice(0, 2000)])),
      ),
      ...toCost(config, answers),
    },
  }
}

function scoreOf(verdict: Verdict, name: string): number {
  return verdict[name]!.score
}

function toCost(config: JudgeConfig, answers: readonly JudgeAnswer[]): Record<string, unknown> {
  const total = (field: keyof JudgeUsage) => answers.reduce((sum, { usage }) => sum + usage[field], 0)
  const [input, output] = [total('promptTokens'), total('completionTokens')]
  const { input_price: inputPrice, output_price: outputPrice } = config
  const isPriced = inputPrice !== undefined || outputPrice !== undefined
  return {
    calls: total('calls'),
    prompt_tokens: input,
    completion_tokens: output,
    ...(isPriced && { cost: (input * (inputPrice ?? 0) + output * (outputPrice ?? 0)) / 1_000_000 }),
  }
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length
}

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = Math.floor(sorted.length / 2)
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
}
