import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { request } from 'undici'
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import { requestBody } from './prompt.ts'
import { STREAM_FILE, WHOLE_FILE } from './replay-bytes.ts'

const SAMPLED_TOKENS = 2000

/** Size of one answer of the engine, and the file with its bytes. */
export interface Answers {
  promptBytes: number
  promptTokens: number
  sampledTokens: number
  wholeBytes: number
  streamBytes: number
}

/** Requests each kind of answer from the tiny engine, with ids and log probabilities, and stores its bytes in `dir`. */
export async function recordAnswers(dir: string): Promise<Answers> {
  await using engine = await startEngine({ script: `default: { tokens: ${SAMPLED_TOKENS} }` })
  const whole = await ask(engine.url, false)
  const stream = await ask(engine.url, true)
  await writeFile(join(dir, WHOLE_FILE), whole)
  await writeFile(join(dir, STREAM_FILE), stream)
  const { usage, choices } = JSON.parse(whole.toString()) as {
    usage: { prompt_tokens: number; completion_tokens: number }
    choices: { token_ids?: number[] }[]
  }
  // One more than in the script: the end of the turn is sampled too.
  if (choices[0]?.token_ids?.length !== SAMPLED_TOKENS + 1) throw new Error('the engine returned another number of ids')
  return {
    promptBytes: Buffer.byteLength(JSON.stringify(requestBody({ stream: false, replay: '', withIds: false }))),
    promptTokens: usage.prompt_tokens,
    sampledTokens: usage.completion_tokens,
    wholeBytes: whole.length,
    streamBytes: stream.length,
  }
}

async function ask(url: string, stream: boolean): Promise<Buffer> {
  const { statusCode, body } = await request(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ ...requestBody({ stream, replay: '', withIds: true }), top_logprobs: 0 }),
    signal: AbortSignal.timeout(60_000),
  })
  const bytes = Buffer.from(await body.arrayBuffer())
  if (statusCode !== 200) throw new Error(`the engine answered ${statusCode}: ${bytes.toString().slice(0, 300)}`)
  return bytes
}
