import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { loadTokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'
import { toForcedScript, writeForcedScript } from './forced-script.ts'
import { compareWithScores, toSequence } from './measure-sessions.ts'
import { Observations } from './observations.ts'
import { RealEngine } from './real-engine.ts'
import { RealStack } from './real-stack.ts'
import { scoreByVllm } from './score-sequence.ts'

const SCRIPT = `
scenarios:
  think: [{ reasoning: "I weigh it.", text: "It is four." }]
`

let scratch: string
let engine: RealEngine | string
const seen = new Observations('vLLM, newest')
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-engine-'))
  const forcedTurns = join(scratch, 'forced.json')
  await writeForcedScript(forcedTurns, toForcedScript(SCRIPT, await loadTokenizer(embeddedModelFolder())))
  const flags = ['--reasoning-parser=qwen3', '--logprobs-mode=processed_logprobs', '--enable-scale-out']
  engine = await RealEngine.open({ environment: 'vllm-0.32.0', model: 'minimind', flags, forcedTurns })
})
afterAll(async () => {
  if (typeof engine === 'object') await engine[Symbol.asyncDispose]()
  await rm(scratch, { recursive: true, force: true })
  seen.version = '0.32.0'
  seen.save()
})

test('vLLM with a reasoning parser, processed log probabilities and scale-out endpoints', async ({ skip }) => {
  if (typeof engine === 'string') return skip(engine)
  await using stack = await RealStack.start({ url: engine.url, model: engine.model })
  const { id, baseUrl, key } = await stack.openSession()
  const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: key, maxRetries: 0 })
  const messages = [{ role: 'user' as const, content: 'SCRIPT:think What is 2 + 2?' }]
  for (const stream of [false, true]) {
    const body = { model: 'x', messages, temperature: 1 }
    if (stream) await client.chat.completions.stream(body).finalChatCompletion()
    else await client.chat.completions.create(body)
  }
  const free = [{ role: 'user' as const, content: 'Tell me a story.' }]
  await client.chat.completions.create({ model: 'x', messages: free, temperature: 1, max_tokens: 16 })
  const { turns } = await stack.recorded(id)
  const reasoning = turns.slice(0, 2).map(({ response }) => response?.choices[0]?.message.reasoning?.trim())
  const raw = await engine.post('/v1/chat/completions', { model: engine.model, messages })
  const answer = (await raw.json()) as { choices: { message: Record<string, unknown> }[] }
  const fields = Object.entries(answer.choices[0]!.message).filter(([, value]) => value === '\nI weigh it.\n')
  const { largestError } = await compareWithScores([toSequence(turns[2]!)], scoreByVllm(engine))
  seen.add('--reasoning-parser qwen3', `reasoning in ${fields.map(([name]) => `\`${name}\``).join(', ')}`)
  seen.add(
    '--logprobs-mode processed_logprobs',
    `recognised as ${stack.report.capabilities.logprobs}; largest error at temperature 1: ${largestError.toExponential(1)}`,
  )
  const rendering = stack.report.findings.find(({ about }) => about === 'render')
  seen.add('--enable-scale-out', `rendering is ${rendering?.verdict}`)
  expect(turns.map(({ response }) => response?.grade)).toEqual(['exact', 'exact', 'exact'])
  expect(reasoning).toEqual(['I weigh it.', 'I weigh it.'])
  expect(largestError).toBeLessThan(1e-3)
  expect(stack.report.capabilities.logprobs).toBe('processed')
  expect(rendering?.verdict).toBe('good')
})
