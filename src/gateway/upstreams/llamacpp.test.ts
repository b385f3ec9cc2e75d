import { createLlamacpp } from './llamacpp.ts'
import { describeUpstream } from './upstream.contract.ts'

describeUpstream('llama.cpp', {
  create: createLlamacpp,
  engine: { wire: 'llamacpp' },
  capabilities: {
    idsOut: true,
    idsInStreams: 'lossy',
    tokenInChat: false,
    render: true,
    tokenise: true,
    weightVersion: false,
    logprobs: 'raw',
    contextTokens: 32_768,
  },
  grade: 'exact',
  // Log probabilities of tokens that end inside a character, and of those that make a stop string, are nowhere.
  lesserGrades: { unicode: 'inferred', stopString: 'inferred' },
  findsPromptIds: true,
})
