import { createOpenai } from './openai.ts'
import { describeUpstream } from './upstream.contract.ts'

describeUpstream('a server that speaks Chat Completions and refuses what it does not know', {
  create: createOpenai,
  engine: { wire: 'openai' },
  capabilities: { idsOut: false, tokenIn: 'none', render: 'none', weightVersion: false },
  grade: 'text-only',
})
