import { probeRequest } from '../../gateway/upstreams/wire/probe.ts'
import { succeeds } from '../../lib/async/succeeds.ts'
import type { Clock } from '../../lib/async/clock.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { withTimeLimit } from './time-limit.ts'

/** Sends one request to the engine and reads its whole answer. Rejects if the engine does not answer. */
export type SendToEngine = (request: TurnRequest, signal: AbortSignal) => Promise<void>

export interface EngineControlOptions {
  send: SendToEngine
  model: string
  clock: Clock
  signal: AbortSignal
}

/** A busy engine answers with one token within this time. */
const CONTROL_MS = 60_000

/**
 * Tests whether a request fails because of its content. `passed`: the engine answers a plain request, fails again for
 * this request, and answers a plain request afterwards. `failed`: the engine answers this request now, or does not answer
 * plain requests; then the content of the request did not cause the failure.
 */
export async function controlEngine(
  failed: TurnRequest,
  { send, model, clock, signal }: EngineControlOptions,
): Promise<'passed' | 'failed'> {
  const limit = { ms: CONTROL_MS, code: 'upstream.timeout', message: 'The engine did not answer in time.' } as const
  const answers = (request: TurnRequest): Promise<boolean> =>
    succeeds(withTimeLimit(limit, { clock, signal }, (stop) => send(request, stop)))
  const again: TurnRequest = { ...failed, forcedSampling: { ...failed.forcedSampling, maxTokens: 1 } }
  const plain = probeRequest({ model, isPlain: true, logprobs: false })
  if (!(await answers(plain)) || (await answers(again))) return 'failed'
  return (await answers(plain)) ? 'passed' : 'failed'
}
