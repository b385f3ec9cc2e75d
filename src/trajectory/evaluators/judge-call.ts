import * as z from 'zod'
import { parseJson } from '../../lib/json/json-text.ts'
import { RolloutError } from '../../model/failure.ts'
import { describeIssues } from '../grading/describe-issues.ts'
import { place, postJson, type JsonAnswer, type JsonPost } from '../grading/post-json.ts'

const ANSWER_BYTES = 4 * 1024 * 1024

export interface JudgeCall {
  url: URL
  key: string | undefined
  body: { model: string; messages: readonly object[]; [field: string]: unknown }
  schema: z.ZodType<Verdict>
  /** From `toFormats`; what the engine refuses is taken out. */
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
  /** All that the judge said, the last being the verdict. */
  texts: string[]
  usage: JudgeUsage
}

const ChatAnswer = z.looseObject({
  choices: z.array(z.looseObject({ message: z.looseObject({ content: z.string().nullish() }) })).min(1),
  usage: z.looseObject({ prompt_tokens: z.int().nullish(), completion_tokens: z.int().nullish() }).nullish(),
})

/**
 * One verdict. An answer that is none is sent back with what is wrong with it, `maxRetries` times. Throws
 * `evaluator.crashed` or `evaluator.timeout` when there is no verdict in the end.
 */
export async function askJudge(call: JudgeCall): Promise<JudgeAnswer> {
  const usage: JudgeUsage = { calls: 0, promptTokens: 0, completionTokens: 0 }
  const texts: string[] = []
  let messages = call.body.messages
  for (let attempt = 0; ; attempt++) {
    const { content, used } = await ask({ ...call, body: { ...call.body, messages } })
    usage.calls += used.calls
    usage.promptTokens += used.promptTokens
    usage.completionTokens += used.completionTokens
    texts.push(content)
    const read = readVerdict(content, call.schema)
    if ('verdict' in read) return { verdict: read.verdict, texts, usage }
    if (attempt >= call.maxRetries) {
      throw new RolloutError(
        'evaluator.crashed',
        `The judge at ${place(call.url)} gave no verdict in ${attempt + 1} answers. The last one: ${read.problem}`,
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

/** How the engine can be told what to answer with, from the strictest to not at all. */
export function toFormats(schema: z.ZodType): (object | undefined)[] {
  const { $schema: _, ...jsonSchema } = z.toJSONSchema(schema)
  return [
    { type: 'json_schema', json_schema: { name: 'verdict', strict: true, schema: jsonSchema } },
    { type: 'json_object' },
    undefined,
  ]
}

async function ask({ url, key, body, formats, ...call }: JudgeCall): Promise<{ content: string; used: JudgeUsage }> {
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
        `The judge at ${place(url)} answered ${answer.status}: ${answer.text.slice(0, 500)}`,
      )
    }
    formats.shift()
  }
}

function readAnswer({ text, attempts }: JsonAnswer, url: URL): { content: string; used: JudgeUsage } {
  const parsed = ChatAnswer.safeParse(parseJson(text))
  if (!parsed.success) {
    throw new RolloutError('evaluator.crashed', `The judge at ${place(url)} does not answer as Chat Completions does.`)
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
 * The whole answer must be the verdict, but for thoughts in front and a fence around it. JSON is never looked for in an
 * answer: it could be a quotation of what the agent planted.
 */
function readVerdict(content: string, schema: z.ZodType<Verdict>): { verdict: Verdict } | { problem: string } {
  const said = content.replace(/^\s*<think>[\s\S]*?<\/think>/, '').trim()
  const [, fenced] = /^```(?:json)?\n([^`]*)\n?```$/.exec(said) ?? []
  const value = parseJson(fenced ?? said)
  if (value === undefined) return { problem: 'it is not JSON' }
  const parsed = schema.safeParse(value)
  return parsed.success ? { verdict: parsed.data } : { problem: describeIssues(parsed.error) }
}
