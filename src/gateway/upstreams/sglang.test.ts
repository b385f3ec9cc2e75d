import { describe, expect, test } from 'vitest'
import { startEngine } from '../../../packages/tiny-engine/src/engine.ts'
import type { AnswerStart } from '../../model/stream-event.ts'
import { createSglang, translateAnswer, translateChunk } from './sglang.ts'
import { describeUpstream, request } from './upstream.contract.ts'
import type { Upstream } from './upstream.ts'

const full = {
  idsOut: true,
  tokenIn: 'chat',
  render: 'tokenize',
  weightVersion: true,
  logprobs: 'tempered',
  contextTokens: 32_768,
} as const

describeUpstream('SGLang 0.5.18: no ids in streams', {
  create: createSglang,
  engine: { wire: 'sglang' },
  capabilities: { ...full, idsInStreams: 'none' },
  grade: 'exact',
})

describeUpstream('SGLang 0.5.14: ids only in meta_info', {
  create: createSglang,
  engine: { wire: 'sglang', wireVersion: '0.5.14' },
  capabilities: { ...full, idsInStreams: 'none' },
  grade: 'exact',
})

describeUpstream('SGLang after 0.5.18: ids at the end of a stream', {
  create: createSglang,
  engine: { wire: 'sglang', wireVersion: '0.5.20' },
  capabilities: { ...full, idsInStreams: 'complete' },
  grade: 'exact',
})

describe('weight versions', () => {
  const ask = async (upstream: Upstream): Promise<AnswerStart> => {
    const { events } = await upstream.send(request('plain', {}), { signal: AbortSignal.timeout(10_000) })
    return (await Array.fromAsync(events)).flat().find((event) => event.type === 'answer-start') as AnswerStart
  }

  test('an answer has the versions before and after its call', async () => {
    await using engine = await startEngine({ wire: 'sglang', script: 'default: { text: hello }' })
    const rename = async (version: string): Promise<void> => {
      const headers = { 'content-type': 'application/json' }
      const body = JSON.stringify({ new_version: version })
      const response = await fetch(`${engine.url}/update_weight_version`, { method: 'POST', headers, body })
      expect(response.status).toBe(200)
    }
    await rename('step-1')
    await using upstream = createSglang({ baseUrl: engine.url, model: 'tiny' })
    expect(await ask(upstream)).toMatchObject({ weightVersionBefore: 'step-1', weightVersion: 'step-1' })
    await rename('step-2')
    expect(await ask(upstream)).toMatchObject({ weightVersionBefore: 'step-2', weightVersion: 'step-2' })
  })
})

describe('translateAnswer()', () => {
  const choice = (fields: object) => ({ index: 0, message: { content: 'x' }, finish_reason: 'stop', ...fields })

  test('reads ids from the fields of each version, and removes these fields', () => {
    const meta_info = {
      output_token_logprobs: [
        [-0.5, 7, null],
        [-0.25, 8, null],
      ],
    }
    const sources = [
      { choices: [choice({ prompt_token_ids: [1], response_token_ids: [7, 8], meta_info })] },
      { choices: [choice({ prompt_token_ids: [1], meta_info })] },
      { choices: [choice({})], sglext: { input_ids: [1], output_ids: [[7, 8]] } },
    ]
    for (const wire of sources) {
      const { answer, doubts } = translateAnswer({ ...wire, metadata: { weight_version: 'step-3' } })
      expect(answer).toEqual({ choices: [choice({ token_ids: [7, 8] })], prompt_token_ids: [1] })
      expect(doubts).toEqual([])
    }
    expect(translateAnswer({ ...sources[0], metadata: { weight_version: 'step-3' } }).weightVersion).toBe('step-3')
  })

  test('adds a doubt when two fields disagree', () => {
    const meta_info = { output_token_logprobs: [[-0.5, 9, null]] }
    const { doubts } = translateAnswer({
      choices: [
        choice({ prompt_token_ids: [1], response_token_ids: [7], meta_info }),
        choice({ index: 1, prompt_token_ids: [2], response_token_ids: [9], meta_info }),
      ],
    })
    expect(doubts).toEqual([
      'choice 0: the engine reported two different lists of ids',
      'the choices have different prompt ids',
    ])
  })

  test('does not change unknown answers', () => {
    expect(translateAnswer({ choices: 'none' })).toEqual({ answer: { choices: 'none' } })
    const chunk = { choices: [{ index: 0, delta: { content: 'x' } }] }
    expect(translateChunk(chunk)).toBe(chunk)
    expect(translateChunk({ choices: [], sglext: { routed_experts: 'abc' } })).toEqual({ choices: [] })
  })
})
