import type { EngineContext } from './context.ts'
import type { PauseMode } from './control.ts'
import { badRequest, fieldErrors, httpError } from './errors.ts'
import type { Exchange } from './exchange.ts'
import { findWeightsProblem } from './inference/output-weights.ts'
import type { LowRank } from './inference/output-weights.ts'
import { AbortBody, parseBody, UpdateWeightsBody, WeightVersionBody } from './wire-schema.ts'

const PAUSE_MODES: ReadonlySet<string> = new Set<PauseMode>(['abort', 'wait', 'keep'])

/** `POST /pause?mode=abort|wait|keep` */
export async function pause(context: EngineContext, exchange: Exchange): Promise<void> {
  const mode = exchange.query.get('mode') ?? 'abort'
  if (!isPauseMode(mode)) {
    throw fieldErrors([
      { path: ['mode'], type: 'literal_error', message: "Input should be 'abort', 'wait' or 'keep'", input: mode },
    ])
  }
  await context.control.pause(mode)
  exchange.sendJson('{"status":"paused"}')
}

function isPauseMode(mode: string): mode is PauseMode {
  return PAUSE_MODES.has(mode)
}

/** `POST /resume` */
export async function resume(context: EngineContext, exchange: Exchange): Promise<void> {
  context.control.resume()
  exchange.sendJson('{"status":"resumed"}')
}

/** `GET /is_paused` */
export async function isPaused(context: EngineContext, exchange: Exchange): Promise<void> {
  exchange.sendJson(JSON.stringify({ is_paused: context.control.isPaused }))
}

/** `POST /abort_requests {request_ids?}`; none or an empty list means all. */
export async function abortRequests(context: EngineContext, exchange: Exchange): Promise<void> {
  const { request_ids: ids } = parseBody(AbortBody, await exchange.readJson())
  const aborted = context.control.abort(ids?.length ? ids : undefined)
  exchange.sendJson(JSON.stringify({ status: 'aborted', aborted }))
}

/** `GET /weight_info` */
export async function weightInfo(context: EngineContext, exchange: Exchange): Promise<void> {
  exchange.sendJson(JSON.stringify({ weight_version: context.control.weightVersion }))
}

/** `POST /update_weight_version {new_version}` */
export async function updateWeightVersion(context: EngineContext, exchange: Exchange): Promise<void> {
  const { new_version: version } = parseBody(WeightVersionBody, await exchange.readJson())
  context.control.weightVersion = version
  exchange.sendJson(JSON.stringify({ success: true, new_version: version }))
}

/**
 * `POST /update_weights {update_info: {output_bias?, low_rank?}, weight_version?}`: replaces the trainable part of the weights
 * while requests run. `output_bias` is a number per vocabulary entry that is added to its logit: base64 of little-endian
 * float32, or an object by id. `low_rank` is `{rank, down, up}`, both matrices row by row as base64 of little-endian float32.
 */
export async function updateWeights(context: EngineContext, exchange: Exchange): Promise<void> {
  const body = await exchange.readJson()
  if (typeof body === 'object' && body !== null && !('update_info' in body)) {
    throw httpError(400, "Missing 'update_info' in request body")
  }
  const { update_info: info, weight_version: version } = parseBody(UpdateWeightsBody, body)
  const { policy, control } = context
  if (!('setOutputWeights' in policy)) {
    throw badRequest(`The policy "${policy.name}" has no weights to update.`, 'update_info')
  }
  if (info.output_bias == null && info.low_rank == null) {
    throw badRequest('update_info has neither output_bias nor low_rank.', 'update_info')
  }
  const { vocabularySize } = context.texts.tokenizer
  const bias = info.output_bias == null ? undefined : toOutputBias(info.output_bias, vocabularySize)
  const lowRank = info.low_rank == null ? undefined : toLowRank(info.low_rank)
  const problem = findWeightsProblem({ lowRank }, { vocabularySize, hiddenSize: policy.hiddenSize })
  if (problem !== undefined) throw badRequest(problem, 'low_rank')
  await policy.setOutputWeights({ bias, lowRank })
  if (version != null) control.weightVersion = version
  exchange.sendJson('{"message":"Weights updated"}')
}

export function toOutputBias(wire: string | Readonly<Record<string, number>>, vocabularySize: number): Float32Array {
  const bias = new Float32Array(vocabularySize)
  if (typeof wire === 'string') {
    const bytes = Buffer.from(wire, 'base64')
    if (bytes.length !== vocabularySize * 4) {
      throw badRequest(
        `output_bias has ${bytes.length} bytes; ${vocabularySize} float32 values are ${vocabularySize * 4}.`,
        'output_bias',
      )
    }
    for (let id = 0; id < vocabularySize; id++) bias[id] = bytes.readFloatLE(id * 4)
  } else {
    for (const [key, value] of Object.entries(wire)) {
      const id = Number(key)
      if (!Number.isInteger(id) || id < 0 || id >= vocabularySize) {
        throw badRequest(
          `output_bias has the key ${key}, which is not a token id below ${vocabularySize}.`,
          'output_bias',
        )
      }
      bias[id] = value
    }
  }
  if (!bias.every(Number.isFinite)) throw badRequest('output_bias has values that are not finite.', 'output_bias')
  return bias
}

function toLowRank({ rank, down, up }: { rank: number; down: string; up: string }): LowRank {
  return { rank, down: toFloats(down), up: toFloats(up) }
}

function toFloats(base64: string): Float32Array {
  const bytes = Buffer.from(base64, 'base64')
  return Float32Array.from({ length: Math.floor(bytes.length / 4) }, (_, i) => bytes.readFloatLE(i * 4))
}

/** `GET /metrics` */
export async function metrics(context: EngineContext, exchange: Exchange): Promise<void> {
  const text = context.metrics.print(context.modelName, context.control)
  exchange.sendText(text, 'text/plain; version=0.0.4; charset=utf-8')
}
