import * as z from 'zod'
import { DefaultSampling, type EngineSampling } from '../../model/turn-sampling.ts'
import { LogprobMode, type TurnRequest } from '../../model/turn.ts'
import type { WireEvent } from '../wire-event.ts'
import type { PromptIdCache } from './wire/fast/read-fast.ts'

/** What an engine can do for exact capture. Assumed from its kind at first, found out by `probe`. */
export const Capabilities = z.strictObject({
  idsOut: z.boolean().describe('Whole answers carry the ids that were read and sampled'),
  idsInStreams: z
    .enum(['complete', 'lossy', 'none'])
    .describe('Whether streams carry them too; unless complete, a call that wants a stream is made without one'),
  tokenInChat: z.boolean().describe('A chat request may bring its prompt as ids, and is parsed like any other'),
  render: z.boolean().describe('The prompt ids of a chat request can be had without generating'),
  tokenise: z.boolean().describe('A text can be turned into ids'),
  weightVersion: z.boolean().describe('Answers say which weights sampled them'),
  logprobs: z.enum([...LogprobMode.options, 'unknown']).describe('What its log probabilities are taken of'),
  defaultSampling: DefaultSampling.optional().describe(
    'How it samples a call that does not say; absent: the documented defaults of its kind are assumed',
  ),
  contextTokens: z.int().positive().optional().describe('Prompt and answer together; absent when it does not say'),
})
export type Capabilities = z.infer<typeof Capabilities>

/**
 * One thing a probe looked at. `good`: as training wants it. `limited`: works, at the price that `meaning` tells.
 * `blocking`: while this holds, no call of an agent can be graded exact.
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
    | 'tokenise'
    | 'weight-version'
    | 'logprobs'
    | 'sampling'
    | 'context'
  verdict: 'good' | 'limited' | 'blocking'
  /** What the engine did. */
  evidence: string
  /** What that means for training, and what to do about it. */
  meaning: string
}

export interface ProbeReport {
  kind: string
  url: string
  /** As the engine calls it; absent when it does not say. */
  version?: string
  /** The model that was asked. */
  model: string
  capabilities: Capabilities
  findings: readonly Finding[]
}

/** Whether calls can be graded exact. */
export function allowsExact(report: Pick<ProbeReport, 'findings'>): boolean {
  return report.findings.every(({ verdict }) => verdict !== 'blocking')
}

export interface UpstreamReply {
  /** What the adapter set or changed in the request, for the log. Final once the events have ended. */
  forced: Readonly<Record<string, unknown>>
  /** Paths of fields that the harness sent and the engine did not get. */
  dropped: readonly string[]
  /** How the engine samples the answer. */
  sampling?: EngineSampling
  /** Batches as they arrive: one per piece of network data, so that one write can follow one read. */
  events: AsyncIterable<readonly WireEvent[]>
  /**
   * `weights.position` when the batch that was taken last was read from the network, which may be long before a slow
   * consumer takes it. Absent where a batch is taken as soon as it is read.
   */
  arrived?: () => number
}

export interface SendOptions {
  signal: AbortSignal
  /** Calls with the same key go to the same replica while it is healthy. */
  sessionKey?: string
  /** Of the same session's earlier answers; spares reading the ids of a prompt again that begins as theirs did. */
  promptIdCache?: PromptIdCache
  /** Counts the changes of weights. A batch of events never spans a change. */
  weights?: { readonly position: number }
  /** Stands in for the prompt that the messages would make; only where `capabilities.tokenInChat`. */
  promptIds?: Int32Array
}

/**
 * One inference engine that may return token ids. Not a place for sessions or dialects. `send` rejects with RolloutError
 * while nothing has been answered yet; a failure after that is an `answer-error` event, so that what came before it is
 * kept. Aborting the signal ends the engine's work. A request for a stream may be answered whole, where that is the only
 * way to all ids: its `choice-delta`s then have everything at once and no `delta` on the wire.
 */
export interface Upstream extends AsyncDisposable {
  readonly kind: string
  /** Without a slash at the end. */
  readonly url: string
  readonly capabilities: Capabilities
  send(request: TurnRequest, options: SendOptions): Promise<UpstreamReply>
  /** The ids the engine would read for this request; nothing is generated. Rejects where it cannot say. */
  tokenise(request: TurnRequest, signal: AbortSignal): Promise<Int32Array>
  /** How many those are; an estimate where the engine cannot say. */
  countTokens(request: TurnRequest, signal: AbortSignal): Promise<number>
  /** Names the engine serves. */
  listModels(signal: AbortSignal): Promise<string[]>
  /** How many tokens prompt and answer of this model may have together; undefined when the engine does not say. */
  contextTokens(model: string, signal: AbortSignal): Promise<number | undefined>
  /**
   * Finds out what the engine can do, by a handful of tiny requests, and goes by it from then on. Rejects when nothing
   * answers; what else goes wrong is a finding.
   */
  probe(signal: AbortSignal): Promise<ProbeReport>
}
