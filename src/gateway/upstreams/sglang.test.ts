import { createSglang } from './sglang.ts'
import { describeUpstream } from './upstream.contract.ts'

const full = {
  idsOut: true,
  tokenInChat: true,
  render: true,
  tokenise: true,
  weightVersion: true,
  logprobs: 'tempered',
  contextTokens: 32_768,
} as const

describeUpstream('SGLang 0.5.18: no ids in streams', {
  create: createSglang,
  engine: { wire: 'sglang' },
  capabilities: { ...full, idsInStreams: 'none' },
  grade: 'exact',
})

describeUpstream('SGLang 0.5.14: ids only in meta_info', {
  create: createSglang,
  engine: { wire: 'sglang', wireVersion: '0.5.14' },
  capabilities: { ...full, idsInStreams: 'none' },
  grade: 'exact',
})

describeUpstream('SGLang after 0.5.18: ids at the end of a stream', {
  create: createSglang,
  engine: { wire: 'sglang', wireVersion: '0.5.20' },
  capabilities: { ...full, idsInStreams: 'complete' },
  grade: 'exact',
})
