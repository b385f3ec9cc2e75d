import * as z from 'zod'
import { DefaultSampling, HiddenDefault, type EngineSampling } from '../../model/turn-sampling.ts'
import { LogprobMode, type TurnRequest } from '../../model/turn.ts'
import type { WireEvent } from '../wire-event.ts'
import { ToolFormat } from './wire/answer-text.ts'
import type { PromptIdCache } from './wire/fast/read-fast.ts'

/** What an engine supports for exact capture. Assumed by kind of engine until `probe` tests it. */
export const Capabilities = z.strictObject({
  idsOut: z.boolean().describe('Whole answers contain the prompt ids and the sampled ids'),
  idsInStreams: z
    .enum(['complete', 'lossy', 'none'])
    .describe('Whether streams contain the ids; unless complete, calls are sent to the engine without `stream`'),
  tokenIn: z
    .enum(['chat', 'completions', 'none'])
    .describe('Requests that may contain their prompt as ids. Answers of completions are parsed by the gateway'),
  render: z
    .enum(['render', 'tokenize', 'template', 'none'])
    .describe(
      'Endpoint that returns the prompt ids of a chat request: /render, /tokenize, or a template and /tokenize',
    ),
  toolFormat: ToolFormat.optional().describe('How the model writes tool calls, where the gateway parses answers'),
  weightVersion: z.boolean().describe('Answers report the version of the weights'),
  logprobs: z.enum([...LogprobMode.options, 'unknown']).describe('The distribution of the log probabilities'),
  defaultSampling: DefaultSampling.optional().describe(
    'Default sampling parameters; absent: the documented defaults of this kind of engine',
  ),
  hiddenDefaults: z
    .array(HiddenDefault)
    .optional()
    .describe('Parameters for which the server has a default of its own, with an unknown value'),
  contextTokens: z.int().positive().optional().describe('Limit of prompt and answer; absent when not reported'),
})
export type Capabilities = z.infer<typeof Capabilities>

/**
 * One result of a probe. `good`: as training needs it. `limited`: works, with the drawback in `meaning`. `blocking`: no call
 * of an agent can be graded exact.
 */
export interface Finding {
  about:
    | 'version'
    | 'models'
    | 'ids-out'
    | 'ids-in-streams'
    | 'tools'
    | 'token-in'
    | 'render'
    | 'continuation'
    | 'weight-version'
    | 'logprobs'
    | 'sampling'
    | 'context'
  verdict: 'good' | 'limited' | 'blocking'
  evidence: string
  /** The consequence for training, and what to do. */
  meaning: string
}

/** How later prompts of a session continue the tokens of earlier calls. `off`: the engine renders every prompt. */
export interface ContinuationState {
  via: 'chat' | 'completions' | 'off'
  why: string
}

/** Sessions, `polar doctor` and the control API all use this decision. `mode`: `off` when the user switched it off. */
export function continuationOf(
  { idsOut, tokenIn, render, toolFormat }: Pick<Capabilities, 'idsOut' | 'tokenIn' | 'render' | 'toolFormat'>,
  mode?: string,
): ContinuationState {
  const off = (why: string): ContinuationState => ({ via: 'off', why })
  if (mode === 'off') return off('--continuation is off')
  if (!idsOut) return off('answers of the engine contain no ids')
  if (tokenIn !== 'chat' && tokenIn !== 'completions') return off('the engine accepts no prompt as ids')
  if (render === 'none') return off('no endpoint of the engine returns the prompt ids of a chat request')
  if (tokenIn === 'chat') return { via: tokenIn, why: 'chat requests contain the prompt as ids' }
  const parsed = toolFormat === undefined ? 'requests with tools are not continued' : `tool calls as ${toolFormat}`
  return { via: tokenIn, why: `completions contain the prompt as ids; the gateway parses whole answers (${parsed})` }
}

export interface ProbeReport {
  kind: string
  url: string
  /** As the engine reports it; absent when it does not. */
  version?: string
  model: string
  capabilities: Capabilities
  findings: readonly Finding[]
}

export function allowsExact(report: Pick<ProbeReport, 'findings'>): boolean {
  return report.findings.every(({ verdict }) => verdict !== 'blocking')
}

export interface UpstreamReply {
  /** Fields that the upstream set or changed in the request, for the log. Final once the events have ended. */
  forced: Readonly<Record<string, unknown>>
  /** Paths of fields of the harness's request that were not sent to the engine. */
  dropped: readonly string[]
  sampling?: EngineSampling
  /** Batches as they arrive: one for each piece of network data, so that one write follows one read. */
  events: AsyncIterable<readonly WireEvent[]>
  /**
   * Returns `weights.position` at the time when the latest batch was read from the network, which may be long before a slow
   * consumer receives it. Absent where a batch is delivered as soon as it is read.
   */
  arrived?: () => number
}

export interface SendOptions {
  signal: AbortSignal
  /** Calls with the same key go to the same replica while it is healthy. */
  sessionKey?: string
  /** Prompt ids of the session's previous answer, so that a repeated beginning is not parsed again. */
  promptIdCache?: PromptIdCache
  /** Counts the changes of weights. A batch of events never spans a change. */
  weights?: { readonly position: number }
  /** The prompt, instead of a rendering of the messages. Only where `continuationOf` is not off. */
  promptIds?: Int32Array
}

/**
 * One inference engine that may return token ids. Independent of sessions and dialects. `send` rejects with RolloutError
 * before the answer begins; a later failure is an `answer-error` event, so that the events before it are kept. Aborting
 * the signal stops the engine. A request with `stream` may be answered whole, where a stream would lose ids: its
 * `choice-delta`s then have everything at once and no `delta` on the wire.
 */
export interface Upstream extends AsyncDisposable {
  readonly kind: string
  /** Without a slash at the end. */
  readonly url: string
  readonly capabilities: Capabilities
  send(request: TurnRequest, options: SendOptions): Promise<UpstreamReply>
  /** Returns the prompt ids of a request without generating. Rejects when the engine cannot tokenise it. */
  tokenise(request: TurnRequest, signal: AbortSignal): Promise<Int32Array>
  /** Returns the number of prompt tokens; an estimate when the engine cannot tokenise. */
  countTokens(request: TurnRequest, signal: AbortSignal): Promise<number>
  listModels(signal: AbortSignal): Promise<string[]>
  /** Returns the limit of prompt and answer together; undefined when the engine does not report it. */
  contextTokens(model: string, signal: AbortSignal): Promise<number | undefined>
  /**
   * Tests what the engine supports with a few small requests, and updates `capabilities`. Rejects when the engine does not
   * answer; every other failure is a finding.
   */
  probe(signal: AbortSignal): Promise<ProbeReport>
}
