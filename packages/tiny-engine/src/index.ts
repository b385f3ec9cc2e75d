/** A small language model behind the HTTP APIs of vLLM, SGLang and llama.cpp, for machines without a GPU. */
export { loadChatTemplate, type ChatTemplate } from './chat-template.ts'
export { startEngine, type Engine, type EngineOptions } from './engine.ts'
export { createRandom } from './inference/random.ts'
export { embeddedModelFolder } from './model-package.ts'
export { createModelPolicy, type ModelPolicy } from './policies/model.ts'
export { EngineSetupError } from './setup-error.ts'
export { loadTokenizer, type Tokenizer } from './tokenizer.ts'
export { WIRES, type WireKind } from './wires.ts'
