import { describeEngine } from './engine-lane.ts'
import { scoreByVllm } from './score-sequence.ts'

describeEngine('vLLM, newest', {
  start: { environment: 'vllm-0.32.0', model: 'minimind' },
  version: '0.32.0',
  forces: true,
  isExact: true,
  continues: true,
  score: scoreByVllm,
  tolerance: 1e-3,
  turns: 20,
})
