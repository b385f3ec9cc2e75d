import { readFile } from 'node:fs/promises'
import type { InferenceSession, TensorConstructor } from 'onnxruntime-web'
import { loadModelShape, modelFile } from '../model-package.ts'
import type { ModelShape } from '../model-package.ts'
import type { KeyValues } from './key-values.ts'

/** Execution provider: native code, which is several times faster, or WebAssembly, which runs everywhere. */
export type BackendKind = 'native' | 'wasm'
/** `auto`: native if its package is installed and loads. */
export type BackendChoice = 'auto' | BackendKind

/** A causal language model in memory. Blocks its thread during a forward pass. */
export interface LanguageModel {
  readonly shape: ModelShape
  /** Reads `ids` after the tokens of `past`. */
  forward(ids: Int32Array, past: KeyValues): Promise<ForwardPass>
  release(): Promise<void>
}

export interface ForwardPass {
  /** Logits of each token that was read, row after row. */
  logits: Float32Array
  /** The hidden states that these logits were computed from, row after row. */
  hidden: Float32Array
  state: KeyValues
}

export interface Backend {
  kind: BackendKind
  model: LanguageModel
}

export async function loadBackend(
  choice: BackendChoice,
  folder: string,
  importNative = importNativeRuntime,
): Promise<Backend> {
  const shape = await loadModelShape(folder)
  const loadNative = async (): Promise<Backend> => {
    const { default: runtime } = await importNative().catch(explainMissingNative)
    const session = await runtime.InferenceSession.create(await loadGraph(folder), SESSION_OPTIONS)
    return { kind: 'native', model: createModel(runtime, session, shape) }
  }
  const loadWasm = async (): Promise<Backend> => {
    const runtime = await import('onnxruntime-web')
    runtime.env.wasm.numThreads = 1
    const session = await runtime.InferenceSession.create(await loadGraph(folder), SESSION_OPTIONS)
    return { kind: 'wasm', model: createModel(runtime, session, shape) }
  }
  switch (choice) {
    case 'native':
      return loadNative()
    case 'wasm':
      return loadWasm()
    case 'auto':
      return loadNative().catch(loadWasm)
  }
}

/** Name of the final hidden state in the graph: the input of the output layer. */
const HIDDEN_STATE = '/model/norm/Mul_1_output_0'

/**
 * Loads the graph with the final hidden state as a further output. A protobuf parser merges repeated occurrences of a
 * message, so appending `ModelProto { graph { output { name } } }` adds the output without parsing the file.
 */
async function loadGraph(folder: string): Promise<Uint8Array> {
  const field = (number: number, content: Uint8Array) =>
    Buffer.concat([Uint8Array.of((number << 3) | LENGTH_DELIMITED, content.length), content])
  const name = field(1, Buffer.from(HIDDEN_STATE))
  return Buffer.concat([await readFile(modelFile(folder)), field(7, field(12, name))])
}

/** Wire type of protobuf for messages and strings. */
const LENGTH_DELIMITED = 2

/** One thread each: the pool has a worker per core, and results must not depend on the split of work. */
const SESSION_OPTIONS: InferenceSession.SessionOptions = {
  intraOpNumThreads: 1,
  interOpNumThreads: 1,
  logSeverityLevel: 3,
}

interface Runtime {
  InferenceSession: typeof InferenceSession
  Tensor: TensorConstructor
}

/** Not a dependency, because it has 290 MB for all platforms. A variable hides it from the compiler. */
const NATIVE_PACKAGE: string = 'onnxruntime-node'

async function importNativeRuntime(): Promise<{ default: Runtime }> {
  return (await import(NATIVE_PACKAGE)) as { default: Runtime }
}

function explainMissingNative(error: unknown): never {
  const reason = error instanceof Error ? error.message : String(error)
  throw new Error(
    `The native backend needs ${NATIVE_PACKAGE}, which did not load: install it, or choose wasm. ${reason}`,
    {
      cause: error,
    },
  )
}

function createModel({ Tensor }: Runtime, session: InferenceSession, shape: ModelShape): LanguageModel {
  const { layers, keyValueHeads, headSize } = shape
  const names = Array.from({ length: layers }, (_, layer) => [`${layer}.key`, `${layer}.value`]).flat()
  const toTensor = (values: BigInt64Array) => new Tensor('int64', values, [1, values.length])

  return {
    shape,
    async forward(ids, past) {
      const length = past.length + ids.length
      const pastDimensions = [1, keyValueHeads, past.length, headSize]
      const outputs = await session.run({
        input_ids: toTensor(BigInt64Array.from(ids, BigInt)),
        attention_mask: toTensor(new BigInt64Array(length).fill(1n)),
        position_ids: toTensor(BigInt64Array.from(ids, (_, i) => BigInt(past.length + i))),
        ...Object.fromEntries(
          names.map((name, i) => [`past_key_values.${name}`, new Tensor('float32', past.tensors[i]!, pastDimensions)]),
        ),
      })
      const floats = (name: string) => outputs[name]!.data as Float32Array
      const tensors = names.map((name) => floats(`present.${name}`))
      return { logits: floats('logits'), hidden: floats(HIDDEN_STATE), state: { length, tensors } }
    },
    release: () => session.release(),
  }
}
