import { expect, test } from 'vitest'
import { FakeClock } from '../../../test/support/fake-clock.ts'
import { RolloutError } from '../../model/failure.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { controlEngine } from './engine-control.ts'

const NEVER = new AbortController().signal
const request = {
  messages: [],
  wire: { api: 'openai-chat', text: '{"bad":1}', body: { bad: 1 } },
} as unknown as TurnRequest

/** An engine that answers, fails or hangs, request by request. Gives the verdict and what was asked. */
async function control(...script: ('answer' | 'fail' | 'hang')[]): Promise<{ verdict: string; asked: string[] }> {
  const clock = new FakeClock()
  const asked: string[] = []
  const ask = async ({ wire, forcedSampling }: TurnRequest, signal: AbortSignal): Promise<void> => {
    asked.push('bad' in wire.body ? `same ${forcedSampling?.maxTokens}` : 'plain')
    const step = script.shift()
    if (step === 'hang') await clock.sleep(3_600_000, signal)
    if (step !== 'answer') throw new RolloutError('upstream.failed', 'It answered 500.')
  }
  const verdict = await clock.run(controlEngine(request, { ask, model: 'tiny', clock, signal: NEVER }))
  return { verdict, asked }
}

test('a request that fails again between two that are answered failed because of what it holds', async () => {
  expect(await control('answer', 'fail', 'answer')).toEqual({ verdict: 'passed', asked: ['plain', 'same 1', 'plain'] })
})

test.each([
  ['does not answer at all', ['fail']],
  ['hangs', ['hang']],
  ['answers the same request now', ['answer', 'answer']],
  ['dies with the request', ['answer', 'fail', 'fail']],
  ['hangs after the request', ['answer', 'fail', 'hang']],
] as const)('an engine that %s is not the doing of the request', async (_, script) => {
  expect((await control(...script)).verdict).toBe('failed')
})
