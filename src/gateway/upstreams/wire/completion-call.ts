import type { SentSampling } from '../../../model/turn-sampling.ts'
import type { TurnRequest } from '../../../model/turn.ts'
import type { WireFields } from '../../wire-event.ts'
import type { Capabilities } from '../upstream.ts'
import { parseAnswerText } from './answer-text.ts'
import type { EngineHttp } from './engine-http.ts'

/*
 * Continuation where chat requests accept no ids: the prompt goes to a completion endpoint, and the gateway parses the
 * sampled text as the engine's chat endpoint would. The answer is requested whole.
 */

/** Returns the fields of the sampling parameters, which have the same names on all completion endpoints. */
export function completionSampling(sent: SentSampling): Record<string, unknown> {
  return {
    temperature: sent.temperature,
    top_p: sent.topP,
    top_k: sent.topK,
    min_p: sent.minP,
    seed: sent.seed,
    stop: sent.stop,
    presence_penalty: sent.presencePenalty,
    frequency_penalty: sent.frequencyPenalty,
  }
}

/** A chat request without a limit may fill the context. Completion endpoints have a small default instead. */
export async function answerLimit(
  http: EngineHttp,
  { model, prompt, limit }: { model: string; prompt: Int32Array; limit: number | undefined },
  capabilities: Capabilities,
  signal: AbortSignal,
): Promise<number | undefined> {
  const context = capabilities.contextTokens ?? (await http.contextTokens(model, signal))
  if (context === undefined) return limit
  // At least one, so that the engine reports a prompt that is too long.
  const rest = Math.max(1, context - prompt.length)
  return limit === undefined ? rest : Math.min(limit, rest)
}

interface SampledText {
  /** Unique in the answer's session. */
  id: string
  text: string
  finishReason: string
}

/** Returns the choice of a chat answer with this text. */
export function toChatChoice(
  { id, text, finishReason }: SampledText,
  request: TurnRequest,
  { toolFormat }: Capabilities,
): { message: WireFields; finish_reason: string } {
  const mayCall = request.tools.length > 0 && request.toolChoice !== 'none'
  const { reasoning, content, toolCalls } = parseAnswerText(text, toolFormat, mayCall ? request.tools : undefined)
  const calls = request.parallelToolCalls === false ? toolCalls.slice(0, 1) : toolCalls
  const hasCalls = calls.length > 0
  return {
    message: {
      role: 'assistant',
      content: content === '' && hasCalls ? null : content,
      ...(reasoning === undefined ? {} : { reasoning }),
      ...(hasCalls
        ? { tool_calls: calls.map((call, i) => ({ id: `call_${id}_${i}`, type: 'function', function: call })) }
        : {}),
    },
    finish_reason: hasCalls && finishReason === 'stop' ? 'tool_calls' : finishReason,
  }
}
