import { probeRequest } from '../../gateway/upstreams/wire/probe.ts'
import type { Clock } from '../../lib/async/clock.ts'
import type { TurnRequest } from '../../model/turn.ts'
import { withTimeLimit } from './time-limit.ts'

/** Sends one request to the engine and reads its whole answer. Rejects when the engine gives none. */
export type AskEngine = (request: TurnRequest, signal: AbortSignal) => Promise<void>

export interface EngineControlOptions {
  ask: AskEngine
  model: string
  clock: Clock
  signal: AbortSignal
}

/** Longer than one token takes on a busy engine. */
const CONTROL_MS = 60_000

/**
 * Whether a request fails because of what it holds. `passed`: the engine answers a plain request, fails for this one
 * again, and answers a plain request afterwards. `failed`: the engine answers this request now, or does not answer plain
 * ones; then its failure was not caused by the request.
 */
export async function controlEngine(
  request: TurnRequest,
  { ask, model, clock, signal }: EngineControlOptions,
): Promise<'passed' | 'failed'> {
  const limit = { ms: CONTROL_MS, code: 'upstream.timeout', message: 'The engine did not answer in time.' } as const
  const answers = (asked: TurnRequest): Promise<boolean> =>
    withTimeLimit(limit, { clock, signal }, (stop) => ask(asked, stop)).then(
      () => true,
      () => false,
    )
  const again: TurnRequest = { ...request, forcedSampling: { ...request.forcedSampling, maxTokens: 1 } }
  const plain = probeRequest({ model, isPlain: true, logprobs: false })
  if (!(await answers(plain)) || (await answers(again))) return 'failed'
  return (await answers(plain)) ? 'passed' : 'failed'
}
