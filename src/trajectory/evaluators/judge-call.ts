import * as z from 'zod'
import { parseJson } from '../../lib/json/json-text.ts'
import { RolloutError } from '../../model/failure.ts'
import { describeIssues } from '../grading/describe-issues.ts'
import { shownUrl, postJson, type JsonAnswer, type JsonPost } from '../grading/post-json.ts'

const ANSWER_BYTES = 4 * 1024 * 1024

export interface JudgeCall {
  url: URL
  key: string | undefined
  body: { model: string; messages: readonly object[]; [field: string]: unknown }
  schema: z.ZodType<Verdict>
  /** From `toFormats`. Formats that the engine rejects are removed. */
  formats: (object | undefined)[]
  maxRetries: number
  backoffMs: number
  timeoutMs: number
  signal: AbortSignal
  /** See `JsonPost`. */
  mayConnect?: JsonPost['mayConnect']
}

export type Verdict = Readonly<Record<string, { reason: string; score: number }>>

export interface JudgeUsage {
  calls: number
  promptTokens: number
  completionTokens: number
}

export interface JudgeAnswer {
  verdict: Verdict
  /** All answers of the judge; the last is the verdict. */
  texts: string[]
  usage: JudgeUsage
}

const ChatAnswer = z.looseObject({
  choices: z.array(z.looseObject({ message: z.looseObject({ content: z.string().nullish() }) })).min(1),
  usage: z.looseObject({ prompt_tokens: z.int().nullish(), completion_tokens: z.int().nullish() }).nullish(),
})

/**
 * Requests one verdict. Returns an invalid answer to the judge with its problem, up to `maxRetries` times. Throws
 * `evaluator.crashed` or `evaluator.timeout` if no verdict is valid.
 */
export async function requestVerdict(call: JudgeCall): Promise<JudgeAnswer> {
  const usage: JudgeUsage = { calls: 0, promptTokens: 0, completionTokens: 0 }
  const texts: string[] = []
  let messages = call.body.messages
  for (let attempt = 0; ; attempt++) {
    const { content, used } = await complete({ ...call, body: { ...call.body, messages } })
    usage.calls += used.calls
    usage.promptTokens += used.promptTokens
    usage.completionTokens += used.completionTokens
    texts.push(content)
    const read = readVerdict(content, call.schema)
    if ('verdict' in read) return { verdict: read.verdict, texts, usage }
    if (attempt >= call.maxRetries) {
      throw new RolloutError(
        'evaluator.crashed',
        `The judge at ${shownUrl(call.url)} gave no verdict in ${attempt + 1} answers. The last one: ${read.problem}`,
      )
    }
    messages = [
      ...call.body.messages,
      { role: 'assistant', content },
      {
        role: 'user',
        content: `That is not the JSON object that was asked for: ${read.problem}. Answer with it alone.`,
      },
    ]
  }
}

/** Returns response formats from the strictest to none. */
export function toFormats(schema: z.ZodType): (object | undefined)[] {
  const { $schema: _, ...jsonSchema } = z.toJSONSchema(schema)
  return [
    { type: 'json_schema', json_schema: { name: 'verdict', strict: true, schema: jsonSchema } },
    { type: 'json_object' },
    undefined,
  ]
}

async function complete({
  url,
  key,
  body,
  formats,
  ...call
}: JudgeCall): Promise<{ content: string; used: JudgeUsage }> {
  for (;;) {
    const [format] = formats
    const answer = await postJson({
      url,
      headers: (): Record<string, string> => (key === undefined ? {} : { authorization: `Bearer ${key}` }),
      body: JSON.stringify({ ...body, ...(format !== undefined && { response_format: format }) }),
      maxBytes: ANSWER_BYTES,
      ...call,
    })
    if (answer.status === 200) return readAnswer(answer, url)
    const isRefused = answer.status === 400 || answer.status === 422
    if (!isRefused || formats.length === 1) {
      throw new RolloutError(
        'evaluator.crashed',
        `The judge at ${shownUrl(url)} answered ${answer.status}: ${answer.text.slice(0, 500)}`,
      )
    }
    formats.shift()
  }
}

function readAnswer({ text, attempts }: JsonAnswer, url: URL): { content: string; used: JudgeUsage } {
  const parsed = ChatAnswer.safeParse(parseJson(text))
  if (!parsed.success) {
    throw new RolloutError(
      'evaluator.crashed',
      `The judge at ${shownUrl(url)} did not return a Chat Completions answer. Check base_url.`,
    )
  }
  const { choices, usage } = parsed.data
  return {
    content: choices[0]?.message.content ?? '',
    used: {
      calls: attempts,
      promptTokens: usage?.prompt_tokens ?? 0,
      completionTokens: usage?.completion_tokens ?? 0,
    },
  }
}

export function toSchema(criteria: readonly string[], min: number, max: number): z.ZodType<Verdict> {
  const criterion = z.strictObject({ reason: z.string(), score: z.number().min(min).max(max) })
  return z.strictObject(Object.fromEntries(criteria.map((name) => [name, criterion])))
}

/**
 * Parses a verdict. The whole answer must be the verdict, apart from leading reasoning and a code fence. JSON within other
 * text is not searched: it could be a quotation of text that the agent planted.
 */
function readVerdict(content: string, schema: z.ZodType<Verdict>): { verdict: Verdict } | { problem: string } {
  const answer = content.replace(/^\s*<think>[\s\S]*?<\/think>/, '').trim()
  const [, fenced] = /^```(?:json)?\n([^`]*)\n?```$/.exec(answer) ?? []
  const value = parseJson(fenced ?? answer)
  if (value === undefined) return { problem: 'it is not JSON' }
  const parsed = schema.safeParse(value)
  return parsed.success ? { verdict: parsed.data } : { problem: describeIssues(parsed.error) }
}
