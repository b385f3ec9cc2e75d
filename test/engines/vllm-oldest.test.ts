import { describeEngine } from './engine-lane.ts'
import { scoreByVllm } from './score-sequence.ts'

describeEngine('vLLM, oldest', {
  start: { environment: 'vllm-0.12.0', model: 'minimind' },
  version: '0.12.0',
  forces: true,
  isExact: true,
  continues: false,
  score: scoreByVllm,
  tolerance: 1e-3,
  turns: 20,
})
