import { RolloutError } from '../../../model/failure.ts'
import type { TurnRequest } from '../../../model/turn.ts'
import type { Capabilities, SendOptions, Upstream, UpstreamReply } from '../upstream.ts'
import type { EngineOptions } from './engine-config.ts'
import type { EngineHttp } from './engine-http.ts'
import { probeEngine, type ProbeSubject } from './probe.ts'

/** What distinguishes one kind of engine from another. */
export interface EngineKind extends Omit<ProbeSubject, 'http' | 'model' | 'send'> {
  send(request: TurnRequest, call: EngineSend): Promise<UpstreamReply>
  /** Returns an estimate of the number of prompt tokens, for engines without `renderings`. */
  estimateTokens?(request: TurnRequest): number
}

export interface EngineSend extends SendOptions {
  /** Whether the engine streams. A stream that loses ids is requested whole. */
  stream: boolean
  capabilities: Capabilities
  countTokens: () => Promise<number>
}

/** Creates the upstream of an engine with a Chat Completions API. */
export function createEngineUpstream(http: EngineHttp, options: EngineOptions, engine: EngineKind): Upstream {
  let capabilities: Capabilities = { ...engine.assumed, ...options.capabilities }

  function send(
    request: TurnRequest,
    sendOptions: SendOptions,
    { stream, tokenIn = capabilities.tokenIn }: { stream: boolean; tokenIn?: Capabilities['tokenIn'] },
  ): Promise<UpstreamReply> {
    const countTokens = async (): Promise<number> => sendOptions.promptIds?.length ?? count(request, sendOptions.signal)
    return engine.send(request, { ...sendOptions, stream, capabilities: { ...capabilities, tokenIn }, countTokens })
  }

  /** Uses the endpoint that the probe chose, then any other: an approximate count is better than none. */
  async function tokenise(request: TurnRequest, signal: AbortSignal): Promise<Int32Array> {
    const chosen = engine.renderings.filter(({ id }) => id === capabilities.render)
    for (const rendering of new Set([...chosen, ...engine.renderings])) {
      const ids = await rendering.query(request, signal)
      if (ids !== undefined) return ids
    }
    throw new RolloutError('upstream.refused', `The engine at ${http.base} cannot tokenise this conversation.`)
  }

  async function count(request: TurnRequest, signal: AbortSignal): Promise<number> {
    return engine.estimateTokens?.(request) ?? (await tokenise(request, signal)).length
  }

  return {
    kind: engine.kind,
    url: http.base,
    get capabilities() {
      return capabilities
    },
    send(request, sendOptions) {
      const isWhole = capabilities.idsOut && capabilities.idsInStreams !== 'complete'
      return send(request, sendOptions, { stream: request.stream && !isWhole })
    },
    tokenise,
    countTokens: count,
    listModels: (signal) => http.listModels(signal),
    contextTokens: (model, signal) => http.contextTokens(model, signal),
    async probe(signal) {
      const report = await probeEngine(
        {
          ...engine,
          http,
          model: options.model,
          send: (request, { tokenIn, ...sendOptions }) =>
            send(request, sendOptions, { stream: request.stream, tokenIn }),
        },
        signal,
      )
      capabilities = { ...report.capabilities, ...options.capabilities }
      return report
    },
    [Symbol.asyncDispose]: () => http[Symbol.asyncDispose](),
  }
}
