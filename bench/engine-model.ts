import type { BackendKind } from '../packages/tiny-engine/src/inference/backend.ts'
import { createModelPolicy } from '../packages/tiny-engine/src/policies/model.ts'
import type { ModelPolicy } from '../packages/tiny-engine/src/policies/model.ts'
import type { SamplingParams } from '../packages/tiny-engine/src/policies/policy.ts'
import { printTable } from './support/table.ts'

const sampling: SamplingParams = {
  temperature: 1,
  topP: 1,
  topK: 0,
  minP: 0,
  repetitionPenalty: 1,
  presencePenalty: 0,
  frequencyPenalty: 0,
  logitBias: new Map(),
  maxTokens: 1e6,
  minTokens: 0,
  stop: [],
  stopTokenIds: [],
  ignoreEos: true,
  n: 1,
  topLogprobs: 0,
}
const SHORT_PROMPT = 64
const LONG_PROMPT = 1500
const ANSWER_TOKENS = 96
const SECONDS_EACH = 5

interface Measured {
  backend: BackendKind
  /** Tokens a second, of all requests together. */
  alone: number
  eight: number
  /** Milliseconds to the first token of a long prompt, new and cached. */
  firstTokenMs: number
  cachedFirstTokenMs: number
}

/** Measures tokens per second of the embedded model with 1 and 8 requests in flight, native and in WebAssembly. */
export async function benchEngineModel(): Promise<void> {
  const rows: Measured[] = []
  for (const backend of ['native', 'wasm'] as const) {
    try {
      rows.push(await measure(backend))
    } catch (error) {
      console.log(`a row is missing: ${error instanceof Error ? error.message : String(error)}`)
    }
  }
  const millis = (value: number) => `${value.toFixed(0)} ms`
  printTable([
    ['backend', '1 request', '8 requests', '8 / 1', 'first token', 'prompt cached', 'cached / not'],
    ...rows.map((row) => [
      row.backend,
      `${row.alone.toFixed(0)} tok/s`,
      `${row.eight.toFixed(0)} tok/s`,
      (row.eight / row.alone).toFixed(2),
      millis(row.firstTokenMs),
      millis(row.cachedFirstTokenMs),
      (row.cachedFirstTokenMs / row.firstTokenMs).toFixed(2),
    ]),
  ])
  const [native, wasm] = rows
  if (native === undefined || wasm === undefined) return
  console.log(
    `native / wasm: ${(native.alone / wasm.alone).toFixed(2)} with 1 request, ${(native.eight / wasm.eight).toFixed(2)} with 8, ` +
      `${(wasm.firstTokenMs / native.firstTokenMs).toFixed(2)} to the first token`,
  )
}

async function measure(backend: BackendKind): Promise<Measured> {
  await using policy = await createModelPolicy({ backend })
  await generate(policy, SHORT_PROMPT, 1, ANSWER_TOKENS)
  const firstToken = async () => {
    const start = performance.now()
    await generate(policy, LONG_PROMPT, 0, 1)
    return performance.now() - start
  }
  return {
    backend,
    alone: await throughput(policy, 1),
    eight: await throughput(policy, 8),
    firstTokenMs: await firstToken(),
    cachedFirstTokenMs: await firstToken(),
  }
}

/** Runs callers that each send the next request as soon as they have an answer. */
async function throughput(policy: ModelPolicy, callers: number): Promise<number> {
  const start = performance.now()
  let tokens = 0
  const call = async (caller: number) => {
    for (let seed = caller; performance.now() - start < SECONDS_EACH * 1000; seed += callers) {
      const sampled = await generate(policy, SHORT_PROMPT, seed, ANSWER_TOKENS)
      tokens += sampled
    }
  }
  await Promise.all(Array.from({ length: callers }, (_, caller) => call(caller)))
  return (tokens * 1000) / (performance.now() - start)
}

async function generate(policy: ModelPolicy, promptTokens: number, seed: number, maxTokens: number): Promise<number> {
  const promptIds = Int32Array.from({ length: promptTokens }, (_, i) => 300 + ((i * 31 + seed * 7) % 5000))
  const { signal } = new AbortController()
  const generation = await policy.start({
    id: `bench-${seed}`,
    promptIds,
    sampling: { ...sampling, seed, maxTokens },
    signal,
  })
  let tokens = 0
  for await (const _token of generation.sample(0)) tokens++
  return tokens
}
