import { checkModel, type EngineContext, secondsOf, unknownModel } from './context.ts'
import { EngineError } from './errors.ts'
import type { Exchange } from './exchange.ts'
import { toChatJob, wantsLogprobs } from './generation-endpoints.ts'
import type { SamplingParams } from './policies/policy.ts'
import { toPromptIds, toPromptText } from './prompt.ts'
import type { JsonObject } from './wire.ts'
import {
  ChatBody,
  checkGenerationPrompt,
  DetokenizeBody,
  parseBody,
  TokenizeChatBody,
  TokenizeTextBody,
} from './wire-schema.ts'

/** `POST /tokenize` for a text or a conversation. */
export async function tokenize(context: EngineContext, exchange: Exchange): Promise<void> {
  const body = await exchange.readJson()
  const isChat = typeof body === 'object' && body !== null && 'messages' in body
  const request = isChat ? readConversation(context, exchange, body) : readText(body)
  checkModel(context, request.model)
  const ids = context.encoder.encode(request.text)
  const { tokenizer } = context.texts
  const names = request.showNames ? Array.from(ids, (id) => tokenizer.tokenName(id)) : null
  exchange.sendJson(
    `{"count":${ids.length},"max_model_len":${context.maxModelLen},"tokens":[${ids.join(',')}],"token_strs":${JSON.stringify(names)}}`,
  )
}

function readConversation(context: EngineContext, exchange: Exchange, wire: unknown) {
  const body = parseBody(TokenizeChatBody, wire)
  checkGenerationPrompt(body)
  const text = toPromptText(body, exchange.rawBody, context.template)
  return { model: body.model, text, showNames: body.return_token_strs === true }
}

function readText(wire: unknown) {
  const body = parseBody(TokenizeTextBody, wire)
  return { model: body.model, text: body.prompt, showNames: body.return_token_strs === true }
}

/** `POST /detokenize` */
export async function detokenize(context: EngineContext, exchange: Exchange): Promise<void> {
  const body = parseBody(DetokenizeBody, await exchange.readJson())
  checkModel(context, body.model)
  const { tokenizer } = context.texts
  const prompt = tokenizer.decode(toPromptIds(body.tokens, tokenizer.vocabularySize))
  exchange.sendJson(JSON.stringify({ prompt }))
}

/** `POST /v1/chat/completions/render`: returns the equivalent request of `/inference/v1/generate`. */
export async function renderChat(context: EngineContext, exchange: Exchange): Promise<void> {
  const body = parseBody(ChatBody, await exchange.readJson())
  const { job } = toChatJob(context, exchange, body)
  const params = JSON.stringify({
    ...toWireParams(job.sampling),
    logprobs: wantsLogprobs(body) ? (body.top_logprobs ?? 0) : null,
    skip_special_tokens: job.skipSpecialTokens,
    include_stop_str_in_output: job.includeStop,
  })
  const rest = JSON.stringify({
    model: body.model ?? null,
    stream: body.stream === true,
    stream_options: body.stream === true ? (body.stream_options ?? null) : null,
    cache_salt: body.cache_salt ?? null,
    priority: body.priority ?? 0,
    kv_transfer_params: null,
  })
  exchange.sendJson(
    `{"request_id":${JSON.stringify(`chatcmpl-${context.newId()}`)},"token_ids":[${job.promptIds.join(',')}],"assistant_tokens_mask":null,"token_offsets":null,"features":null,"content_parts":null,"sampling_params":${params},${rest.slice(1)}`,
  )
}

function toWireParams(params: SamplingParams): Readonly<Record<string, unknown>> {
  return {
    n: params.n,
    presence_penalty: params.presencePenalty,
    frequency_penalty: params.frequencyPenalty,
    repetition_penalty: params.repetitionPenalty,
    temperature: params.temperature,
    top_p: params.topP,
    top_k: params.topK,
    min_p: params.minP,
    seed: params.seed ?? null,
    stop: params.stop,
    stop_token_ids: params.stopTokenIds,
    ignore_eos: params.ignoreEos,
    max_tokens: params.maxTokens,
    min_tokens: params.minTokens,
    logit_bias: params.logitBias.size === 0 ? null : Object.fromEntries(params.logitBias),
  }
}

/** `GET /v1/models` */
export async function listModels(context: EngineContext, exchange: Exchange): Promise<void> {
  exchange.sendJson(JSON.stringify({ object: 'list', data: [modelCard(context)] }))
}

/** `GET /v1/models/{id}` */
export async function showModel(context: EngineContext, exchange: Exchange): Promise<void> {
  const id = decodeName(exchange.path.slice('/v1/models/'.length))
  if (id !== context.modelName) throw unknownModel(id)
  exchange.sendJson(JSON.stringify(modelCard(context)))
}

function decodeName(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw new EngineError(404, 'Not Found')
  }
}

function modelCard(context: EngineContext): JsonObject {
  const created = secondsOf(context.now())
  return context.wire.toModelCard({
    id: context.modelName,
    object: 'model',
    created,
    owned_by: 'vllm',
    root: context.policy.name,
    parent: null,
    max_model_len: context.maxModelLen,
    permission: [
      {
        id: `modelperm-${context.newId()}`,
        object: 'model_permission',
        created,
        allow_create_engine: false,
        allow_sampling: true,
        allow_logprobs: true,
        allow_search_indices: false,
        allow_view: true,
        allow_fine_tuning: false,
        organization: '*',
        group: null,
        is_blocking: false,
      },
    ],
  })
}
