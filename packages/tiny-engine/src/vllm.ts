import { isAtLeast } from './versions.ts'
import { EngineError, toErrorBody } from './errors.ts'
import { isObject, type Route, type Wire } from './wire.ts'

/** First version of each path. Other paths exist in all versions. */
const SINCE: Readonly<Record<string, string>> = {
  '/inference/v1/generate': '0.11.1',
  '/pause': '0.12',
  '/resume': '0.12',
  '/is_paused': '0.12',
  '/abort_requests': '0.12',
  '/v1/chat/completions/render': '0.15',
  '/update_weights': '0.16',
  '/weight_info': '0.27',
  '/update_weight_version': '0.27',
}

/** Paths that a server answers with 403 from 0.30 on, unless it was started with `--enable-scale-out`. */
const SCALE_OUT = ['/v1/chat/completions/render', '/inference/v1/generate']

const DISABLED: Route = {
  method: 'POST',
  async handle(_context, exchange) {
    await exchange.readJson()
    const message = 'Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.'
    throw new EngineError(403, message, { type: 'PermissionDeniedError' })
  },
}

/** vLLM from 0.10 on. */
export function createVllmWire(version: string, { scaleOut = false }: { scaleOut?: boolean } = {}): Wire {
  const has = (since: string): boolean => isAtLeast(version, since)
  const ignored = [
    ...(has('0.10.2') ? [] : ['return_token_ids']),
    ...(has('0.21') ? [] : ['return_prompt_text']),
    ...(has('0.27') ? [] : ['kv_transfer_params']),
  ]
  return {
    serves: (path) => SINCE[path] === undefined || has(SINCE[path]),
    routes: new Map(has('0.30') && !scaleOut ? SCALE_OUT.map((path) => [path, DISABLED]) : []),
    reasoningFields: reasoningFields(has),
    losesHeldIds: !has('0.13'),
    masksByGrammar: true,
    lowersMaxTokens: false,
    coercesArguments: has('0.29'),
    // A version ignores fields that it does not know.
    toChatBody(body) {
      if (ignored.length === 0 || !isObject(body)) return body
      return Object.fromEntries(Object.entries(body).filter(([name]) => !ignored.includes(name)))
    },
    toModelCard: (card) => card,
    toErrorBody,
  }
}

function reasoningFields(has: (since: string) => boolean): Wire['reasoningFields'] {
  if (has('0.16')) return ['reasoning']
  return has('0.11.1') ? ['reasoning', 'reasoning_content'] : ['reasoning_content']
}
