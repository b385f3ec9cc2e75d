import { createHash, createHmac } from 'node:crypto'
import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import { EvalResult } from '../../model/reward.ts'
import type { Workspace } from '../../model/workspace.ts'
import { assertCallable, requireSecret } from '../grading/assert-callable.ts'
import { describeIssues } from '../grading/describe-issues.ts'
import { postJson, shownUrl } from '../grading/post-json.ts'
import { assertInRange, rewardRange } from '../grading/reward-range.ts'
import { collectReadable, readSubmitted, ReadFileSettings } from '../grading/submitted-files.ts'
import type { Collection, Evaluation, Evaluator, EvaluatorDeps } from './evaluator.ts'

const ANSWER_BYTES = 4 * 1024 * 1024

const HttpConfig = z.strictObject({
  kind: z.literal('http'),
  url: z.url().describe('URL that receives the session; the operator lists the allowed hosts'),
  secret_env: z.string().min(1).optional().describe('Name of the secret that signs the requests'),
  messages: z.boolean().default(true).describe('Whether to send the main conversation'),
  files: ReadFileSettings.optional().describe('Files of the agent to send; absent: none'),
  reward_range: rewardRange,
  timeout_seconds: z.number().positive().max(3600).default(120).describe('Time limit of one attempt'),
  max_retries: z
    .int()
    .min(0)
    .max(10)
    .default(3)
    .describe('Retries after a failed connection, a timeout, 408, 429 and 5xx'),
  retry_backoff_seconds: z.number().min(0).max(60).default(1).describe('Delay before the first retry; doubles'),
})
type HttpConfig = z.infer<typeof HttpConfig>

/** Grades by a service of the operator. */
export const http: Plug<typeof HttpConfig, EvaluatorDeps, Evaluator> = {
  config: HttpConfig,
  create(config, deps) {
    const url = new URL(config.url)
    assertCallable(url, deps, 'evaluator http, url')
    const secret = requireSecret(config.secret_env, deps, 'evaluator http, secret_env')
    const { files } = config
    return {
      needs: { sandbox: false, agentState: false, messages: config.messages },
      rewards: config.reward_range,
      ...(files !== undefined && {
        collect: (agent: Workspace, collection: Collection) => collectReadable(agent, collection, files),
      }),
      evaluate: (evaluation) => evaluate({ config, url, secret, deps }, evaluation),
    }
  },
}

interface Service {
  config: HttpConfig
  url: URL
  secret: string | undefined
  deps: EvaluatorDeps
}

async function evaluate({ config, url, secret, deps }: Service, evaluation: Evaluation): Promise<EvalResult> {
  const { sessionId, task, ending, samples, evidence, signal } = evaluation
  const about = {
    schema_version: 1,
    session_id: sessionId,
    task,
    ending: { kind: ending.kind, exit_code: ending.exitCode },
    samples,
    ...(config.messages && { messages: evaluation.conversation() }),
  }
  const files = config.files === undefined ? undefined : await toFiles(evaluation.submission, config.files)
  const body = JSON.stringify({ ...about, ...(files !== undefined && { files }) })
  const shown = files?.map(({ path, size }) => ({ path, size }))
  await evidence.write('http-request.json', JSON.stringify({ ...about, ...(shown && { files: shown }) }, undefined, 2))
  const answer = await postJson({
    url,
    body,
    headers: () => ({
      // The same for every attempt and every grading of the session, so that the service may repeat its answer.
      'idempotency-key': createHash('sha256').update(body).digest('hex'),
      ...(secret !== undefined && { 'x-polar-signature': sign(body, secret, deps.now()) }),
    }),
    timeoutMs: config.timeout_seconds * 1000,
    maxRetries: config.max_retries,
    backoffMs: config.retry_backoff_seconds * 1000,
    maxBytes: ANSWER_BYTES,
    mayConnect: deps.mayConnect,
    signal,
  })
  await evidence.write('http-answer.json', answer.text)
  if (answer.status !== 200) throw crashed(url, `answered ${answer.status}: ${answer.text.slice(0, 500)}`)
  const result = parseAnswer(answer.text, url, samples)
  assertInRange(result, config.reward_range, `The evaluator at ${shownUrl(url)}`)
  return result
}

async function toFiles(submission: string, settings: ReadFileSettings) {
  const files: { path: string; size: number; content_base64: string }[] = []
  for await (const { name, data } of readSubmitted(submission, settings)) {
    files.push({ path: name, size: data.length, content_base64: data.toString('base64') })
  }
  return files
}

/** Signs the time too, so that a recorded request cannot be replayed later. */
function sign(body: string, secret: string, now: number): string {
  const time = Math.floor(now / 1000)
  return `t=${time},v1=${createHmac('sha256', secret).update(`${time}.${body}`).digest('hex')}`
}

function parseAnswer(text: string, url: URL, samples: number): EvalResult {
  const parsed = EvalResult.safeParse(parseJson(text, url))
  if (!parsed.success) throw crashed(url, `returned an invalid result: ${describeIssues(parsed.error)}`)
  const { outcome_reward: outcome, trace_rewards: traces } = parsed.data
  if (outcome == null && traces == null) throw crashed(url, 'returned neither outcome_reward nor trace_rewards')
  if (traces != null && traces.length !== samples) {
    throw crashed(url, `returned ${traces.length} trace_rewards for ${samples} traces`)
  }
  return parsed.data
}

function parseJson(text: string, url: URL): unknown {
  try {
    return JSON.parse(text)
  } catch (cause) {
    throw crashed(url, `returned invalid JSON: ${JSON.stringify(text.slice(0, 200))}`, cause)
  }
}

function crashed(url: URL, what: string, cause?: unknown): RolloutError {
  return new RolloutError('evaluator.crashed', `The evaluator at ${shownUrl(url)} ${what}`, { cause })
}
