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

/** Runs controlEngine() with an engine that answers, fails or hangs. Returns the verdict and the requests. */
async function control(...script: ('answer' | 'fail' | 'hang')[]): Promise<{ verdict: string; sent: string[] }> {
  const clock = new FakeClock()
  const sent: string[] = []
  const send = async ({ wire, forcedSampling }: TurnRequest, signal: AbortSignal): Promise<void> => {
    sent.push('bad' in wire.body ? `same ${forcedSampling?.maxTokens}` : 'plain')
    const step = script.shift()
    if (step === 'hang') await clock.sleep(3_600_000, signal)
    if (step !== 'answer') throw new RolloutError('upstream.failed', 'It answered 500.')
  }
  const verdict = await clock.run(controlEngine(request, { send, model: 'tiny', clock, signal: NEVER }))
  return { verdict, sent }
}

test('controlEngine() passes if the request fails again between two answered plain requests', async () => {
  expect(await control('answer', 'fail', 'answer')).toEqual({ verdict: 'passed', sent: ['plain', 'same 1', 'plain'] })
})

test.each([
  ['does not answer at all', ['fail']],
  ['hangs', ['hang']],
  ['answers the same request now', ['answer', 'answer']],
  ['dies with the request', ['answer', 'fail', 'fail']],
  ['hangs after the request', ['answer', 'fail', 'hang']],
] as const)('controlEngine() fails if the engine %s', async (_, script) => {
  expect((await control(...script)).verdict).toBe('failed')
})
